"""Download: fill a media folder for an offline host on a machine that has a network."""

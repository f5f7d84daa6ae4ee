"""Every difference between devices lives here: one Device object, chosen once, injected into the ModelRunner."""

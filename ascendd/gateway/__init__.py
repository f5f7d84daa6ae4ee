"""One entry for several instances on a host: rules choose the model, load and prefix choose the instance."""

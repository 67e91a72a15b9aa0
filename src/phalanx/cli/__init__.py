"""The commands: thin, one module each, over the other rooms."""

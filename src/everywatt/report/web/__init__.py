"""The live page over runs and the machine now. Needs the extra `serve`."""

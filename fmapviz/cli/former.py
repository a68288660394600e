"""Options with another name than up to version 0.2."""

FORMER = {"--top": "--predictions", "--seed": "--anchor"}  # version 0.4 drops them

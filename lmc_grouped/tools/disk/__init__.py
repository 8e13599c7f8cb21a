"""`lmc-grouped disk`: look at, verify and clean up the stores of the file tier."""

"""What the command line runs; anything but core is imported only when used."""

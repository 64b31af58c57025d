"""``specctl doctor``: what is wrong with a server or a launch command, as findings. Nothing is started."""

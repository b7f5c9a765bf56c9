"""Starting the same command on every host of a pod, and what must hold before it starts."""

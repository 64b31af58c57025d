"""Which servers are steered, by which policy: from the command line, a file, DNS, the Kubernetes API."""

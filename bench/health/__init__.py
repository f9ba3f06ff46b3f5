"""Health: what `bench doctor` looks at, each check a plain function that returns findings."""

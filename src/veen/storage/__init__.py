"""What a hub keeps on disk, and a read-only view of it for everyone else."""

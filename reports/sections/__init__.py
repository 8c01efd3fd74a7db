"""What the renderers show: arranged data that all formats share, and drawings that belong to one format."""

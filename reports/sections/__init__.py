"""What the renderers show: arranged data that every format shares, and the drawings that one format owns."""

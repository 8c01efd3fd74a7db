"""What two recordings show: aligned by step, sample and token in one pass, with the floor; nothing is judged here."""

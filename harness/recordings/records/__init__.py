"""What the records of a recording say, each kind as a frozen type: what is missing there is missing here."""

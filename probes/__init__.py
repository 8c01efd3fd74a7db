"""What happened: recorders that live in any process, standard library only. docs/format.md is their format."""

"""What will break a job of OpenRLHF, verl or TRL, told from its command before it starts."""

from harness.doctor.frameworks.examine import look

__all__ = ["look"]

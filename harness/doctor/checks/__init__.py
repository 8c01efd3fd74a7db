"""Every check, in the order of the report: by module, and within a module as they are written.

A new check is a function of facts under `@check` in one of these modules. A new fact is a field of its section in
`harness.doctor.gather`.
"""

from harness.doctor.checks import builds, cluster, graphics, network, processes, recorder, software, storage, system
from harness.doctor.outcome import REGISTERED, Check, Comparison

_MODULES = (system, storage, builds, network, recorder, software, graphics, processes, cluster)

CHECKS: tuple[Check, ...] = tuple(
    registered
    for module in _MODULES
    for registered in REGISTERED
    if isinstance(registered, Check) and registered.module == module.__name__
)
COMPARISONS: tuple[Comparison, ...] = tuple(
    registered for registered in REGISTERED if isinstance(registered, Comparison)
)

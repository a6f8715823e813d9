"""What a topic needs of the broker that has loaded it."""

from typing import Final

from pulsarctl_wire.broker.basics.scheduler import Scheduler
from pulsarctl_wire.broker.basics.settings import Settings
from pulsarctl_wire.broker.schemas.registry import Schemas
from pulsarctl_wire.broker.storage.journal import Journal
from pulsarctl_wire.broker.storage.log import Cache
from pulsarctl_wire.broker.tenancy.limits import Limiter
from pulsarctl_wire.broker.tenancy.namespaces import Namespaces

_CACHE_BYTES: Final = 16 * 1024 * 1024


class Environment:
    """What all topics of a broker share. `ends` maps each stored log to the index after its last entry."""

    def __init__(
        self,
        number: int,
        settings: Settings,
        scheduler: Scheduler,
        journal: Journal,
        namespaces: Namespaces,
        schemas: Schemas,
        ends: dict[int, int],
    ) -> None:
        self.number = number
        """The number of the broker in its cluster."""
        self.settings = settings
        self.scheduler = scheduler
        self.journal = journal
        self.namespaces = namespaces
        self.schemas = schemas
        self.ends = ends
        self.cache = Cache(_CACHE_BYTES)
        self.publish_limiter = Limiter(scheduler)
        self.dispatch_limiter = Limiter(scheduler)
        interceptors = ",".join(settings.brokerEntryMetadataInterceptors)
        self.adds_timestamp = "AppendBrokerTimestamp" in interceptors
        self.adds_index = "AppendIndex" in interceptors
        self.adds_metadata = self.adds_timestamp or self.adds_index

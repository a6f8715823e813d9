"""The options that `pwire consume` and `pwire read` share, and the types of subscriptions."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal

from pulsarctl_wire.cli.options import PAYLOAD_RATIO
from pulsarctl_wire.cli.session.key_uris import ENCRYPTION_KEY_VALUE, load_key
from pulsarctl_wire.cli.signature import flag, option, several

if TYPE_CHECKING:
    from pulsarctl_wire.cli.session.verb import Session

SHOW, END, FLOW = "What to show", "When it ends", "Permits"
"""Headings in the help."""

Type = Literal["Exclusive", "Shared", "Failover", "Key_Shared"]
"""Subscription types."""


@dataclass(frozen=True, kw_only=True)
class ReceiveOptions:
    """The options that `consume` and `read` share: when to end, what to show, and how fast."""

    at_end: bool = flag(
        "-e --exit-at-end",
        "End after the last message that existed at the start, or after 3 s without a message.",
        END,
    )
    idle: float | None = option("--idle SECONDS", "End after this time without a message.", END, min=0)
    output: Literal["text", "line", "json", "none"] = option(
        "-o --output",
        "text: payloads; line: one line per message with id, key and so on; json; none.",
        SHOW,
        default="text",
    )
    template: str | None = option(
        "-f --format FORMAT",
        "Format as in kcat: %s payload, %S size, %k key, %h properties, %t topic, %p partition, %o entry, "
        "%T time, %i message id, %b batch index, %r redelivered, %x hex; \\n, \\t, \\xNN.",
        SHOW,
    )
    filter: str | None = option(
        "--filter EXPR", "Show only matching messages: 'properties.kind == \"a\" and size > 9'.", SHOW
    )
    hexadecimal: bool = flag("--hex", "Show payloads as hex digits.", SHOW)
    schema: str = option(
        "--schema -st --schema-type TYPE[:FILE]",
        "Decode by this schema; auto: by each message's own, from the broker; bytes: do not decode.",
        SHOW,
        default="auto",
    )
    hide_content: bool = flag("--hide-content", "Do not print messages, only their number.", SHOW)
    key_values: list[str] = several(
        f"{ENCRYPTION_KEY_VALUE} URI",
        "Decrypt messages by this private key: file:///PATH, data:application/x-pem-file;base64,… or a path.",
        SHOW,
    )
    crypto_failure: Literal["fail", "discard", "consume"] | None = option(
        "--crypto-failure",
        "What to do with a message that no key opens: fail: end; discard: acknowledge it unseen; "
        "consume: show the ciphertext.",
        SHOW,
        show_default="fail with -ekv or --private-key, else consume",
    )
    payload_ratio: int | None = PAYLOAD_RATIO(SHOW)
    queue_size: int = option(
        "-q --queue-size N",
        "Number of permits; granted again when half of them are used.",
        FLOW,
        default=1000,
        min=1,
        max=2**31 - 1,
    )
    rate: float | None = option("-r --rate N", "Maximum number of messages per second.", FLOW, min=0.001)
    quiet: bool = flag("--quiet", "Do not print a summary.")

    def prepare_decryption(self, session: Session) -> dict[str, Any]:
        """Return the arguments of `ConsumerOptions` for decryption. Raises SettingsError.

        The keys of -ekv join those of `session`, which also decrypt its trace.
        """
        if self.key_values:
            from pulsarctl_wire.wire.encryption import KeyRing, load_private_key

            keys = [load_key(uri, load_private_key) for uri in self.key_values]
            session.keys = KeyRing([*keys, *(session.keys.keys if session.keys is not None else ())])
        action = "consume" if session.keys is None else "fail"
        return {"keys": session.keys, "crypto_failure": self.crypto_failure or action}

"""What a server keeps in its folder to know people by: an authority, tokens, a signing key.

`phalanx up` opens it to serve; `phalanx token` and `phalanx kubeconfig` open the same one to hand
out more. Everything in it is for its owner alone, or it is refused.
"""

from __future__ import annotations

import ssl
from collections.abc import Sequence
from pathlib import Path

from phalanx.api.wire import User
from phalanx.server.certificates import client_certificate, server_context
from phalanx.server.security.accounttokens import Signer
from phalanx.server.security.privacy import check_private_folder
from phalanx.server.security.tokens import FILE, TokenFile, Tokens
from phalanx.server.security.users import ADMIN

_SIGNER = "service-accounts.key"


class Keyring:
    """The keys in one folder. Raises Exposed when others can get at them."""

    def __init__(self, folder: Path) -> None:
        check_private_folder(folder)
        self._folder = folder
        self.handed = TokenFile(folder / FILE)

    def serving(self, names: Sequence[str], now: float) -> tuple[ssl.SSLContext, bytes]:
        """The TLS context to serve with, and the authority that clients should trust."""
        return server_context(self._folder, names, now)

    def tokens(self) -> Tokens:
        """The tokens that are accepted, now and as they are handed out."""
        return Tokens({}, file=self.handed, signer=Signer.kept(self._folder / _SIGNER))

    def admin_token(self, present: str, place: Path, now: float) -> str:
        """The administrator's token: the present one, if it counts, or a new one for that place."""
        user = self.handed.user(present, now) if present else None
        if user is not None and user.name == ADMIN.name:
            return present
        return self.handed.create(ADMIN, now, label=str(place))

    def certificate(
        self, name: str, groups: Sequence[str], days: int, now: float
    ) -> tuple[str, str]:
        """A client certificate and its key for somebody."""
        return client_certificate(self._folder, User(name, tuple(groups)), days, now)

    @property
    def has_authority(self) -> bool:
        """Whether a server has been here."""
        return (self._folder / "ca.key").exists()

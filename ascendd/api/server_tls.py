"""TLS of a listener: one context for as long as it listens, whose certificate may be exchanged in between."""

from __future__ import annotations

import ssl
import stat
import time
from pathlib import Path

from structlog.stdlib import BoundLogger

from ascendd.config.certificate import Certificate, open_pair, when
from ascendd.config.schema import TlsSection
from ascendd.errors import AscenddError
from ascendd.telemetry.log import get_logger

_SOON_S = 30 * 86_400.0


class ServerTls:
    """
    The context to listen with; new connections meet the certificate that was read last, open ones keep theirs.

    A certificate that has expired since the start is used all the same: the supervisor refuses it where an operator
    waits for the answer, and a process that is started again at night must not end for it.
    """

    def __init__(self, section: TlsSection, area: str = "api") -> None:
        """Read the files; `area` begins the names of log events. Raises ConfigError or PermissionMissing."""
        self._section = section
        self._log: BoundLogger = get_logger(area)
        self._area = area
        self._current, self.certificate = open_pair(section)
        self.context = self._current
        # Called for each handshake, with or without a name in it.
        self.context.sni_callback = self._choose
        self._tell()

    @classmethod
    def of(cls, section: TlsSection | None, area: str = "api") -> ServerTls | None:
        """Return one where `section` is there. Raises as the constructor."""
        return None if section is None else cls(section, area)

    def reload(self) -> None:
        """Read the files anew; what is wrong with them is logged, and the old certificate stays."""
        try:
            self._current, self.certificate = open_pair(self._section)
        except AscenddError as error:
            # Said in one line; the traceback would tell nothing more.
            self._log.error(f"{self._area}.certificate_not_reloaded", code=error.code, error=error.message)
            return
        self._tell()

    def _choose(self, connection: ssl.SSLObject, _name: str | None, _context: ssl.SSLContext) -> None:
        if self._current is not self.context:
            connection.context = self._current

    def _tell(self) -> None:
        cert: Certificate = self.certificate
        path = self._section.cert_file
        left_s = cert.not_after_unix_s - time.time()
        log = self._log.warning if left_s < _SOON_S else self._log.info
        log(
            f"{self._area}.certificate_loaded",
            path=path,
            expires=when(cert.not_after_unix_s),
            days_left=round(left_s / 86_400, 1),
            sha256=cert.digest.hex(),
        )
        key = Path(self._section.key_file)
        mode = key.stat().st_mode
        if mode & stat.S_IRWXO:
            self._log.warning(
                f"{self._area}.key_file_exposed",
                path=str(key),
                mode=f"{stat.S_IMODE(mode):04o}",
                remedy=f"chmod 0640 {key}",
            )

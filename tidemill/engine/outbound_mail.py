"""Hands mails over to an SMTP server."""

from __future__ import annotations

import smtplib
import ssl
from email.message import EmailMessage

from tidemill.core.errors import TidemillError

IMPLICIT_TLS = 465


class OutboundMailError(TidemillError):
    """The server did not accept the mail for any of its receivers."""


def send_mail(
    mail: EmailMessage,
    server: str,
    port: int,
    *,
    timeout: float,
    tls: bool = False,
    username: str | None = None,
    password: str | None = None,
    ca: str | None = None,
) -> list[str]:
    """Hand a mail over; returns the receivers that were refused while others were accepted.

    With `tls` the connection is encrypted: by STARTTLS, or on port 465 from its start. `ca` has certificates to trust
    beside those of this host: as PEM, or the path of a file with them.
    """
    try:
        context = _trusting(ca) if tls else None
        is_implicit = context is not None and port == IMPLICIT_TLS
        with (
            smtplib.SMTP_SSL(server, port, timeout=timeout, context=context)
            if is_implicit
            else smtplib.SMTP(server, port, timeout=timeout)
        ) as smtp:
            if context is not None and not is_implicit:
                smtp.starttls(context=context)
            if username:
                smtp.login(username, password or "")
            return sorted(smtp.send_message(mail))
    except smtplib.SMTPRecipientsRefused as error:
        raise OutboundMailError(f"{server} refused every receiver: {', '.join(sorted(error.recipients))}") from error
    except ssl.SSLCertVerificationError as error:
        raise OutboundMailError(
            f"the certificate of {server} is not trusted: {error.verify_message}. Nothing was sent. If it is the right "
            "server, give its certificate, or that of its authority, as `ca`"
        ) from error
    except smtplib.SMTPResponseException as error:
        said = error.smtp_error.decode(errors="replace") if isinstance(error.smtp_error, bytes) else error.smtp_error
        raise OutboundMailError(f"{server} did not accept the mail: {error.smtp_code} {said}") from error
    except (OSError, smtplib.SMTPException, UnicodeError) as error:
        raise OutboundMailError(f"{server} did not accept the mail: {error}") from error


def _trusting(ca: str | None) -> ssl.SSLContext:
    """A context that trusts the certificates of this host, and these."""
    context = ssl.create_default_context()
    if ca:
        try:
            if "-----BEGIN" in ca:
                context.load_verify_locations(cadata=ca)
            else:
                context.load_verify_locations(cafile=ca)
        except (OSError, ValueError) as error:
            raise OutboundMailError(f"`ca` is neither certificates in PEM nor a file with them: {error}") from error
    return context

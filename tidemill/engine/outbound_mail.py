"""Hands mails over to an SMTP server."""

from __future__ import annotations

import smtplib
import ssl
from email.message import EmailMessage

from tidemill.core.errors import TidemillError


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
) -> list[str]:
    """Hand a mail over, with STARTTLS if `tls`; returns the receivers that were refused while others were accepted."""
    try:
        with smtplib.SMTP(server, port, timeout=timeout) as smtp:
            if tls:
                smtp.starttls(context=ssl.create_default_context())
            if username:
                smtp.login(username, password or "")
            return sorted(smtp.send_message(mail))
    except smtplib.SMTPRecipientsRefused as error:
        raise OutboundMailError(f"{server} refused every receiver: {', '.join(sorted(error.recipients))}") from error
    except (OSError, smtplib.SMTPException, UnicodeError) as error:
        raise OutboundMailError(f"{server} did not accept the mail: {error}") from error

"""A mail server on this machine: as much of SMTP as a client needs to hand over a mail."""

from __future__ import annotations

import datetime
import ipaddress
import socketserver
import ssl
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec


@contextmanager
def mail_server(tls: ssl.SSLContext | None = None) -> Iterator[tuple[int, list[str]]]:
    """The port of a server, and the mails that it has accepted. It refuses the receivers called `gone`.

    With `tls` it also takes STARTTLS.
    """
    mails: list[str] = []

    class Session(socketserver.StreamRequestHandler):
        def handle(self) -> None:
            self.wfile.write(b"220 here\r\n")
            while line := self.rfile.readline().decode():
                word = line[:4].strip().upper()
                if word == "EHLO" and tls is not None and not isinstance(self.connection, ssl.SSLSocket):
                    self.wfile.write(b"250-here\r\n250 STARTTLS\r\n")
                    continue
                if word == "STAR" and tls is not None:
                    self.wfile.write(b"220 go on\r\n")
                    try:
                        self.connection = tls.wrap_socket(self.connection, server_side=True)
                    except (ssl.SSLError, OSError):
                        return  # The client does not trust it.
                    self.rfile, self.wfile = self.connection.makefile("rb"), self.connection.makefile("wb", buffering=0)
                    continue
                if word == "DATA":
                    self.wfile.write(b"354 go on\r\n")
                    mails.append("".join(iter(lambda: self.rfile.readline().decode(), ".\r\n")))
                if word == "QUIT":
                    self.wfile.write(b"221 bye\r\n")
                    return
                self.wfile.write(b"550 no such user\r\n" if "gone@" in line else b"250 ok\r\n")

    with socketserver.ThreadingTCPServer(("127.0.0.1", 0), Session) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        try:
            yield server.server_address[1], mails
        finally:
            server.shutdown()


def self_signed(folder: Path) -> tuple[ssl.SSLContext, str]:
    """The side of a server with a certificate of its own for 127.0.0.1, and that certificate in PEM."""
    key = ec.generate_private_key(ec.SECP256R1())
    name = x509.Name([x509.NameAttribute(x509.NameOID.COMMON_NAME, "mail.example.org")])
    now = datetime.datetime.now(datetime.UTC)
    made = (
        x509.CertificateBuilder()
        .subject_name(name)
        .issuer_name(name)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - datetime.timedelta(hours=1))
        .not_valid_after(now + datetime.timedelta(days=1))
        .add_extension(x509.SubjectAlternativeName([x509.IPAddress(ipaddress.ip_address("127.0.0.1"))]), critical=False)
        .add_extension(x509.BasicConstraints(ca=True, path_length=None), critical=True)
        .sign(key, hashes.SHA256())
    )
    certificate = made.public_bytes(serialization.Encoding.PEM)
    private = key.private_bytes(
        serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
    )
    (folder / "mail.pem").write_bytes(certificate + private)
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(folder / "mail.pem")
    return context, certificate.decode()

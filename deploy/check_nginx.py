"""`nginx -t` on every template; run by `make lint`."""

import subprocess
import sys
import tempfile
from datetime import UTC, datetime, timedelta
from pathlib import Path

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID

from deploy.binaries import find_nginx
from deploy.nginx import PLAIN, TLS, render, values_for


def check(name: str) -> str | None:
    """What nginx has against a template, warnings too; None when it has nothing."""
    with tempfile.TemporaryDirectory() as folder:
        prefix = Path(folder, "nginx")
        for place in (prefix / "temp", Path(folder, "logs")):
            place.mkdir(parents=True)
        write_certificate(prefix)
        (prefix / "nginx.conf").write_text(render(name, _values()))
        said = subprocess.run(
            [find_nginx(), "-t", "-q", "-p", f"{prefix}/", "-c", "nginx.conf", "-e", "stderr"],
            capture_output=True,
            text=True,
            check=False,
        )
    return said.stderr.strip() or (f"status {said.returncode}" if said.returncode else None)


def write_certificate(folder: Path, host: str = "localhost") -> None:
    """A certificate for one day, signed by itself: certificate.pem and key.pem."""
    key = ec.generate_private_key(ec.SECP256R1())
    name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, host)])
    now = datetime.now(UTC)
    certificate = (
        x509.CertificateBuilder(name, name, key.public_key(), x509.random_serial_number())
        .not_valid_before(now - timedelta(hours=1))
        .not_valid_after(now + timedelta(days=1))
        .add_extension(x509.SubjectAlternativeName([x509.DNSName(host)]), critical=False)
        .sign(key, hashes.SHA256())
    )
    pem = serialization.Encoding.PEM
    (folder / "certificate.pem").write_bytes(certificate.public_bytes(pem))
    (folder / "key.pem").write_bytes(
        key.private_bytes(pem, serialization.PrivateFormat.PKCS8, serialization.NoEncryption())
    )


def _values() -> dict[str, str]:
    gateways = ["127.0.0.1:8001", "127.0.0.1:8002"]
    return values_for(listen="127.0.0.1:8443", gateways=gateways, workers=1, connections=512) | {
        "LISTEN_PLAIN": "127.0.0.1:8080",
        "CERTIFICATE": "certificate.pem",
        "CERTIFICATE_KEY": "key.pem",
    }


def main() -> int:
    complaints = {name: check(name) for name in (PLAIN, TLS)}
    for name, complaint in complaints.items():
        print(f"nginx/{name}: {complaint or 'ok'}")
    return 1 if any(complaints.values()) else 0


if __name__ == "__main__":
    sys.exit(main())

"""Certificates for development: a private authority, and the certificates that it issues. With its
key, anybody can pose as a broker to those who trust it: use it only on machines without real
data."""

from __future__ import annotations

import datetime
import ipaddress
import os
from collections.abc import Sequence
from pathlib import Path

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

from fanlog.errors import InvalidArgumentError

CA_FILE = "ca.pem"
_CA_KEY_FILE = "ca.key"
# A clock that is a little behind must not refuse a new certificate.
_BEFORE = datetime.timedelta(minutes=5)


class DevAuthority:
    """An authority in a folder: `ca.pem`, which clients trust, and its key."""

    def __init__(
        self, folder: Path, certificate: x509.Certificate, key: ec.EllipticCurvePrivateKey
    ):
        self.folder = folder
        self._certificate = certificate
        self._key = key

    @property
    def ca_file(self) -> Path:
        return self.folder / CA_FILE

    def issue(
        self,
        file_name: str,
        names: Sequence[str],
        *,
        client: bool = False,
        days: float = 90,
        now: datetime.datetime | None = None,
    ) -> tuple[Path, Path]:
        """A certificate for host names and addresses, or for a client: its file, and its key file.
        Existing files are replaced as a whole."""
        now = now or datetime.datetime.now(datetime.UTC)
        key = ec.generate_private_key(ec.SECP256R1())
        usage = ExtendedKeyUsageOID.CLIENT_AUTH if client else ExtendedKeyUsageOID.SERVER_AUTH
        certificate = (
            x509.CertificateBuilder()
            .subject_name(_common_name(names[0]))
            .issuer_name(self._certificate.subject)
            .public_key(key.public_key())
            .serial_number(x509.random_serial_number())
            .not_valid_before(now - _BEFORE)
            .not_valid_after(now + datetime.timedelta(days=days))
            .add_extension(x509.BasicConstraints(ca=False, path_length=None), critical=True)
            .add_extension(x509.ExtendedKeyUsage([usage]), critical=False)
            .add_extension(_alternatives(names), critical=False)
            .add_extension(
                x509.AuthorityKeyIdentifier.from_issuer_public_key(self._key.public_key()),
                critical=False,
            )
            .sign(self._key, hashes.SHA256())
        )
        paths = self.folder / f"{file_name}.pem", self.folder / f"{file_name}.key"
        _write(paths[1], _pem_key(key), secret=True)
        _write(paths[0], certificate.public_bytes(serialization.Encoding.PEM))
        return paths


def open_authority(folder: Path, *, days: float = 3650) -> DevAuthority:
    """The authority in a folder; a new one if there is none."""
    certificate_path, key_path = folder / CA_FILE, folder / _CA_KEY_FILE
    if certificate_path.exists() != key_path.exists():
        there, missing = certificate_path, key_path
        if key_path.exists():
            there, missing = key_path, certificate_path
        raise InvalidArgumentError(
            f"{there} exists, but {missing} does not. Give another folder, or remove the file "
            "to make a new authority: clients then have to trust that one."
        )
    if certificate_path.exists():
        return _read_authority(folder, certificate_path, key_path)
    folder.mkdir(parents=True, exist_ok=True)
    now = datetime.datetime.now(datetime.UTC)
    key = ec.generate_private_key(ec.SECP256R1())
    name = _common_name("Fanlog development CA")
    certificate = (
        x509.CertificateBuilder()
        .subject_name(name)
        .issuer_name(name)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - _BEFORE)
        .not_valid_after(now + datetime.timedelta(days=days))
        .add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
        .add_extension(_ca_usage(), critical=True)
        .add_extension(x509.SubjectKeyIdentifier.from_public_key(key.public_key()), critical=False)
        .sign(key, hashes.SHA256())
    )
    _write(key_path, _pem_key(key), secret=True)
    _write(certificate_path, certificate.public_bytes(serialization.Encoding.PEM))
    return DevAuthority(folder, certificate, key)


def _read_authority(folder: Path, certificate_path: Path, key_path: Path) -> DevAuthority:
    try:
        certificate = x509.load_pem_x509_certificate(certificate_path.read_bytes())
        key = serialization.load_pem_private_key(key_path.read_bytes(), None)
    except (ValueError, TypeError) as fault:
        raise InvalidArgumentError(
            f"{certificate_path} and {key_path} are not a certificate and its key: give another "
            "folder."
        ) from fault
    if not isinstance(key, ec.EllipticCurvePrivateKey) or key.public_key() != (
        certificate.public_key()
    ):
        raise InvalidArgumentError(
            f"{certificate_path} is not an authority that fanlog tls dev made: give another folder."
        )
    return DevAuthority(folder, certificate, key)


def _common_name(name: str) -> x509.Name:
    try:
        return x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, name)])
    except ValueError as fault:
        raise InvalidArgumentError(f"{name!r} can't be a name in a certificate: {fault}") from fault


def _ca_usage() -> x509.KeyUsage:
    return x509.KeyUsage(
        digital_signature=True,
        key_cert_sign=True,
        crl_sign=True,
        content_commitment=False,
        key_encipherment=False,
        data_encipherment=False,
        key_agreement=False,
        encipher_only=False,
        decipher_only=False,
    )


def _alternatives(names: Sequence[str]) -> x509.SubjectAlternativeName:
    found: list[x509.GeneralName] = []
    for name in names:
        try:
            found.append(x509.IPAddress(ipaddress.ip_address(name)))
        except ValueError:
            try:
                found.append(x509.DNSName(name))
            except ValueError as fault:
                raise InvalidArgumentError(
                    f"{name!r} can't be a name in a certificate: write ASCII."
                ) from fault
    return x509.SubjectAlternativeName(found)


def _pem_key(key: ec.EllipticCurvePrivateKey) -> bytes:
    return key.private_bytes(
        serialization.Encoding.PEM,
        serialization.PrivateFormat.PKCS8,
        serialization.NoEncryption(),
    )


def _write(path: Path, data: bytes, *, secret: bool = False) -> None:
    """Whole or not at all; a key is its owner's from the first moment."""
    new = path.with_name(path.name + ".new")
    new.unlink(missing_ok=True)
    descriptor = os.open(new, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600 if secret else 0o644)
    with os.fdopen(descriptor, "wb") as file:
        file.write(data)
    new.replace(path)

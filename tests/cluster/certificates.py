"""The throw-away certificates and kubeconfigs of one cluster."""

import base64
import datetime as dt
import ipaddress
import json
from dataclasses import dataclass
from pathlib import Path

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

from tests.cluster.layout import Layout

_VALID = dt.timedelta(days=365)
_CLOCK_SLACK = dt.timedelta(hours=1)
_SERVICE_NAMES = ("kubernetes", "kubernetes.default", "kubernetes.default.svc", "kubernetes.default.svc.cluster.local")


@dataclass(frozen=True)
class _Signed:
    certificate: x509.Certificate
    key: ec.EllipticCurvePrivateKey

    @property
    def certificate_pem(self) -> bytes:
        return self.certificate.public_bytes(serialization.Encoding.PEM)

    @property
    def key_pem(self) -> bytes:
        return self.key.private_bytes(
            serialization.Encoding.PEM, serialization.PrivateFormat.TraditionalOpenSSL, serialization.NoEncryption()
        )


def write_certificates(layout: Layout, folder: Path) -> None:
    """Write everything that the cluster's programs identify themselves with into a new folder."""
    folder.mkdir(mode=0o700)
    authority = _write(folder, "ca", _sign("pagefleet-test-ca"))
    front = _write(folder, "front-ca", _sign("pagefleet-test-front-ca"))
    _write(folder, "front-proxy", _sign("front-proxy-client", by=front))
    _write(folder, "service-account", _sign("service-account", by=authority))
    names = ("localhost", "127.0.0.1", layout.host_address, layout.service_address, *_SERVICE_NAMES)
    _write(folder, "apiserver", _sign("kube-apiserver", names=names, by=authority))
    _write(folder, "apiserver-kubelet", _sign("apiserver-kubelet-client", "system:masters", by=authority))

    identities = {
        "admin": ("admin", "system:masters"),
        "controller-manager": ("system:kube-controller-manager", ""),
        "scheduler": ("system:kube-scheduler", ""),
        "kube-proxy": ("system:kube-proxy", ""),
        "coredns": ("coredns", "system:masters"),
    }
    for node in layout.nodes:
        user = f"system:node:{node.name}"
        identities[f"node-{node.name}"] = (user, "system:nodes")
        serving = _sign(user, "system:nodes", names=(node.name, node.address), by=authority)
        _write(folder, f"kubelet-{node.name}", serving)
    for name, (user, group) in identities.items():
        signed = _write(folder, name, _sign(user, group, by=authority))
        (folder / f"{name}.kubeconfig").write_text(_kubeconfig(layout.url, authority, signed))


def _write(folder: Path, name: str, signed: _Signed) -> _Signed:
    (folder / f"{name}.crt").write_bytes(signed.certificate_pem)
    (folder / f"{name}.key").write_bytes(signed.key_pem)
    return signed


def _sign(user: str, group: str = "", *, names: tuple[str, ...] = (), by: _Signed | None = None) -> _Signed:
    """Make a certificate, of an authority when nobody signs it."""
    key = ec.generate_private_key(ec.SECP256R1())
    attributes = [x509.NameAttribute(NameOID.COMMON_NAME, user)]
    if group:
        attributes.append(x509.NameAttribute(NameOID.ORGANIZATION_NAME, group))
    subject = x509.Name(attributes)
    now = dt.datetime.now(dt.UTC)
    builder = (
        x509.CertificateBuilder()
        .subject_name(subject)
        .issuer_name(by.certificate.subject if by else subject)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - _CLOCK_SLACK)
        .not_valid_after(now + _VALID)
        .add_extension(x509.BasicConstraints(ca=by is None, path_length=None), critical=True)
        .add_extension(x509.SubjectKeyIdentifier.from_public_key(key.public_key()), critical=False)
    )
    if by:
        signer = x509.AuthorityKeyIdentifier.from_issuer_public_key(by.key.public_key())
        usages = x509.ExtendedKeyUsage([ExtendedKeyUsageOID.SERVER_AUTH, ExtendedKeyUsageOID.CLIENT_AUTH])
        builder = builder.add_extension(signer, critical=False).add_extension(usages, critical=False)
    else:
        builder = builder.add_extension(_AUTHORITY_USAGE, critical=True)
    if names:
        alternatives = x509.SubjectAlternativeName([_general_name(name) for name in names])
        builder = builder.add_extension(alternatives, critical=False)
    return _Signed(builder.sign(by.key if by else key, hashes.SHA256()), key)


_AUTHORITY_USAGE = x509.KeyUsage(
    key_cert_sign=True,
    crl_sign=True,
    digital_signature=True,
    content_commitment=False,
    key_encipherment=False,
    data_encipherment=False,
    key_agreement=False,
    encipher_only=False,
    decipher_only=False,
)


def _general_name(name: str) -> x509.GeneralName:
    try:
        return x509.IPAddress(ipaddress.ip_address(name))
    except ValueError:
        return x509.DNSName(name)


def _kubeconfig(url: str, authority: _Signed, client: _Signed) -> str:
    def encoded(data: bytes) -> str:
        return base64.b64encode(data).decode()

    cluster = {"server": url, "certificate-authority-data": encoded(authority.certificate_pem)}
    user = {
        "client-certificate-data": encoded(client.certificate_pem),
        "client-key-data": encoded(client.key_pem),
    }
    config = {
        "apiVersion": "v1",
        "kind": "Config",
        "current-context": "test",
        "contexts": [{"name": "test", "context": {"cluster": "test", "user": "test"}}],
        "clusters": [{"name": "test", "cluster": cluster}],
        "users": [{"name": "test", "user": user}],
    }
    return json.dumps(config, indent=1)  # JSON is YAML

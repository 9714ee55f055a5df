//! Makes and reads certificates. Certificates and keys are texts in PEM.

use std::time::Duration;

use anyhow::{anyhow, bail, ensure};
use jiff::{SignedDuration, Timestamp};
use rcgen::{
    BasicConstraints, CertificateParams, DnType, ExtendedKeyUsagePurpose, IsCa, Issuer, KeyPair, KeyUsagePurpose,
    PublicKeyData, date_time_ymd,
};
use rustls::pki_types::CertificateDer;
use rustls::pki_types::pem::PemObject;
use x509_parser::prelude::{FromDer, X509Certificate};

pub const AUTHORITY_LIFE: SignedDuration = SignedDuration::from_hours(10 * 365 * 24);
pub(crate) const LEAF_LIFE: SignedDuration = SignedDuration::from_hours(90 * 24);
/// How long before now the validity of a certificate begins, because clocks differ.
const SKEW: SignedDuration = SignedDuration::from_hours(1);

/// The certificate of an authority with its key. It is not `Debug`, so that the key is in no log.
#[derive(Clone, PartialEq, Eq)]
pub struct CaCertificate {
    pub certificate: String,
    pub key: String,
    pub(super) made: Timestamp,
    pub(super) not_after: Timestamp,
}

impl CaCertificate {
    pub fn generate(now: Timestamp) -> anyhow::Result<Self> {
        let key = KeyPair::generate().map_err(unmade)?;
        let mut params = CertificateParams::default();
        params.distinguished_name = rcgen::DistinguishedName::new();
        // The old and the new authority must have different names: a chain is looked up by the name.
        params.distinguished_name.push(DnType::CommonName, format!("clusterip authority {}", now.as_second()));
        params.is_ca = IsCa::Ca(BasicConstraints::Constrained(0));
        params.key_usages = vec![KeyUsagePurpose::KeyCertSign, KeyUsagePurpose::CrlSign];
        during(&mut params, now - SKEW, now + AUTHORITY_LIFE);
        let certificate = params.self_signed(&key).map_err(unmade)?.pem();
        Self::read(&certificate, &key.serialize_pem())
    }

    pub fn read(certificate: &str, key: &str) -> anyhow::Result<Self> {
        let der = single(certificate)?;
        let parsed = parse(&der)?;
        ensure!(parsed.is_ca(), "the certificate is not that of an authority");
        let pair = KeyPair::from_pem(key).map_err(|error| anyhow!("not a private key: {error}"))?;
        let is_own = pair.subject_public_key_info() == parsed.public_key().raw;
        ensure!(is_own, "the key does not belong to the certificate");
        Ok(Self {
            certificate: certificate.to_owned(),
            key: key.to_owned(),
            made: timestamp(parsed.validity().not_before) + SKEW,
            not_after: timestamp(parsed.validity().not_after),
        })
    }

    /// Issues a server certificate, valid for 90 days, and not longer than the authority.
    pub fn issue(&self, names: &[String], now: Timestamp) -> anyhow::Result<Leaf> {
        let own = KeyPair::from_pem(&self.key).map_err(unmade)?;
        let issuer = Issuer::from_ca_cert_pem(&self.certificate, own).map_err(unmade)?;
        let key = KeyPair::generate().map_err(unmade)?;
        let mut params = CertificateParams::new(names).map_err(unmade)?;
        params.distinguished_name = rcgen::DistinguishedName::new();
        params.distinguished_name.push(DnType::CommonName, "clusterip");
        params.is_ca = IsCa::ExplicitNoCa;
        params.key_usages = vec![KeyUsagePurpose::DigitalSignature];
        params.extended_key_usages = vec![ExtendedKeyUsagePurpose::ServerAuth];
        params.use_authority_key_identifier_extension = true;
        let not_after = (now + LEAF_LIFE).min(self.not_after);
        during(&mut params, now - SKEW, not_after);
        let certificate = params.signed_by(&key, &issuer).map_err(unmade)?.pem();
        let issued_by = self.certificate.clone();
        let renewal = now + SignedDuration::from_secs((not_after.as_second() - now.as_second()) / 3 * 2);
        Ok(Leaf { certificate, key: key.serialize_pem(), issued_by, renewal })
    }
}

/// A server certificate, which is not `Debug`, as [`CaCertificate`].
#[derive(Clone)]
pub struct Leaf {
    pub certificate: String,
    pub key: String,
    pub issued_by: String,
    /// When the certificate is renewed: after two thirds of its life.
    pub renewal: Timestamp,
}

pub fn end(text: &str) -> anyhow::Result<Timestamp> {
    Ok(timestamp(parse(&single(text)?)?.validity().not_after))
}

fn single(text: &str) -> anyhow::Result<CertificateDer<'static>> {
    let ders: Result<Vec<_>, _> = CertificateDer::pem_slice_iter(text.as_bytes()).collect();
    let mut ders = ders.map_err(|error| anyhow!("not a certificate: {error}"))?;
    match (ders.pop(), ders.len()) {
        (None, _) => bail!("not a certificate: no items found"),
        (Some(der), 0) => Ok(der),
        (Some(_), others) => bail!("{} certificates, expected one", others + 1),
    }
}

fn parse<'a>(der: &'a CertificateDer<'_>) -> anyhow::Result<X509Certificate<'a>> {
    let parsed = X509Certificate::from_der(der).map_err(|error| anyhow!("not a certificate: {error}"));
    parsed.map(|(_, certificate)| certificate)
}

fn unmade(error: rcgen::Error) -> anyhow::Error {
    anyhow!("making a certificate failed: {error}")
}

pub(super) fn timestamp(time: x509_parser::time::ASN1Time) -> Timestamp {
    Timestamp::from_second(time.timestamp()).unwrap_or(Timestamp::MAX)
}

fn during(params: &mut CertificateParams, begin: Timestamp, end: Timestamp) {
    let time = |time: Timestamp| {
        date_time_ymd(1970, 1, 1) + Duration::from_secs(u64::try_from(time.as_second()).unwrap_or_default())
    };
    (params.not_before, params.not_after) = (time(begin), time(end));
}

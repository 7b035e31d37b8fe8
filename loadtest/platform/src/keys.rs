//! Keys: what the platform signs with, and one merchant as the platform sees it.
//!
//! A [`SigningKey`] is an RSA-2048 key under its serial, published either bare or in a platform certificate. A
//! [`Merchant`] joins a merchant number, its `APIv3` key and the key that signs for it.
//! What is signed, and when, is left to [`crate::delivery`].

use std::error::Error;
use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use aws_lc_rs::encoding::{AsDer, Pkcs8V1Der};
use aws_lc_rs::rand::{SecureRandom, SystemRandom};
use aws_lc_rs::rsa::{KeyPair, KeySize};
use aws_lc_rs::signature::RSA_PKCS1_SHA256;
use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use rcgen::{CertificateParams, DistinguishedName, DnType, PKCS_RSA_SHA256, SerialNumber};

/// The last second of the year 9999, the latest date a certificate can carry.
const UNIX_MAX: i64 = 253_402_300_799;

/// Why there is no key or no merchant.
#[derive(Debug)]
pub enum KeyError {
    /// The operating system or the library could not make a key.
    Generate,
    /// The bytes or the text hold no usable RSA key in PKCS#8 form; the text says why.
    Pkcs8(String),
    /// The key is RSA, but has this number of bits instead of 2048.
    Size(usize),
    /// The dates are before 1970, after 9999, or in the wrong order.
    Dates,
    /// The certificate could not be written.
    Certificate(rcgen::Error),
    /// The `APIv3` key is not 32 printable ASCII characters.
    ApiV3Key,
}

impl fmt::Display for KeyError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Generate => write!(f, "no key could be made"),
            Self::Pkcs8(why) => write!(f, "not an RSA key in PKCS#8 form: {why}"),
            Self::Size(bits) => write!(f, "an RSA key of {bits} bits, 2048 are needed"),
            Self::Dates => write!(f, "certificate dates out of range or order"),
            Self::Certificate(_) => write!(f, "the certificate could not be written"),
            Self::ApiV3Key => write!(f, "the APIv3 key is not 32 printable ASCII characters"),
        }
    }
}

impl Error for KeyError {
    fn source(&self) -> Option<&(dyn Error + 'static)> {
        match self {
            Self::Certificate(source) => Some(source),
            _ => None,
        }
    }
}

/// One merchant as the platform knows it. Cloning is cheap; two clones with different keys model a change of keys.
#[derive(Clone)]
pub struct Merchant {
    /// The merchant number, or the service provider's for partners.
    pub mchid: String,
    /// What signs this merchant's notices.
    pub key: Arc<SigningKey>,
    /// The secret the notices are encrypted with: 32 ASCII bytes, not decoded in any way.
    api_v3_key: [u8; 32],
}

impl Merchant {
    /// Joins a number, an `APIv3` key and a signing key.
    ///
    /// Shapes: `api_v3_key`, 32 printable ASCII characters.   Errors: [`KeyError::ApiV3Key`] when it is anything else.
    pub fn new(
        mchid: impl Into<String>,
        api_v3_key: &str,
        key: SigningKey,
    ) -> Result<Self, KeyError> {
        let bytes = api_v3_key.as_bytes();
        if !bytes.iter().all(u8::is_ascii_graphic) {
            return Err(KeyError::ApiV3Key);
        }
        Ok(Self {
            mchid: mchid.into(),
            key: Arc::new(key),
            api_v3_key: bytes.try_into().map_err(|_| KeyError::ApiV3Key)?,
        })
    }

    /// The key the notices are encrypted with.
    pub fn api_v3_key(&self) -> &[u8; 32] {
        &self.api_v3_key
    }

    /// The same merchant, signed for by another key.
    pub fn with_key(&self, key: SigningKey) -> Self {
        Self {
            key: Arc::new(key),
            ..self.clone()
        }
    }
}

impl fmt::Debug for Merchant {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Merchant")
            .field("mchid", &self.mchid)
            .field("key", &self.key)
            .finish_non_exhaustive()
    }
}

/// An RSA-2048 key of the platform, under the serial that `Wechatpay-Serial` names.
pub struct SigningKey {
    serial: String,
    pair: KeyPair,
    pkcs8_der: Vec<u8>,
    public_key_pem: String,
    certificate_pem: Option<String>,
}

impl SigningKey {
    /// Makes a key in public-key mode. Slow in debug builds: up to seconds.
    ///
    /// Shapes: `serial`, like `PUB_KEY_ID_0119000000012026090100000000000001`, not checked.
    /// Errors: [`KeyError::Generate`].
    pub fn public_key(serial: impl Into<String>) -> Result<Self, KeyError> {
        Self::from_pkcs8(serial, &generate()?)
    }

    /// Makes a key in certificate mode: a self-signed platform certificate under a serial of its own.
    ///
    /// Units: Unix seconds.   Errors: [`KeyError::Generate`], [`KeyError::Dates`], [`KeyError::Certificate`].
    pub fn certificate(not_before_unix: i64, not_after_unix: i64) -> Result<Self, KeyError> {
        Self::certificate_from_pkcs8(&generate()?, not_before_unix, not_after_unix)
    }

    /// Reads a key for public-key mode from PKCS#8 DER.
    ///
    /// Errors: [`KeyError::Pkcs8`], [`KeyError::Size`].
    pub fn from_pkcs8(serial: impl Into<String>, pkcs8_der: &[u8]) -> Result<Self, KeyError> {
        let pair = KeyPair::from_pkcs8(pkcs8_der).map_err(|e| KeyError::Pkcs8(e.to_string()))?;
        if pair.public_modulus_len() != KeySize::Rsa2048.len() {
            return Err(KeyError::Size(pair.public_modulus_len() * 8));
        }
        Ok(Self {
            serial: serial.into(),
            public_key_pem: rcgen_pair(pkcs8_der)?.public_key_pem(),
            pkcs8_der: pkcs8_der.to_vec(),
            certificate_pem: None,
            pair,
        })
    }

    /// Reads a key for public-key mode from PKCS#8 PEM (`BEGIN PRIVATE KEY`). Errors as for [`SigningKey::from_pkcs8`].
    pub fn from_pkcs8_pem(serial: impl Into<String>, pem: &str) -> Result<Self, KeyError> {
        let pair = rcgen::KeyPair::from_pkcs8_pem_and_sign_algo(pem, &PKCS_RSA_SHA256)
            .map_err(|e| KeyError::Pkcs8(e.to_string()))?;
        Self::from_pkcs8(serial, pair.serialized_der())
    }

    /// Reads a key from PKCS#8 DER and writes a new certificate for it, under a new serial.
    ///
    /// Units: Unix seconds.   Errors: those of [`SigningKey::from_pkcs8`] and [`SigningKey::certificate`].
    pub fn certificate_from_pkcs8(
        pkcs8_der: &[u8],
        not_before_unix: i64,
        not_after_unix: i64,
    ) -> Result<Self, KeyError> {
        if not_before_unix < 0 || not_before_unix > not_after_unix || not_after_unix > UNIX_MAX {
            return Err(KeyError::Dates);
        }
        let serial = certificate_serial()?;
        let epoch = rcgen::date_time_ymd(1970, 1, 1);
        let mut name = DistinguishedName::new();
        name.push(DnType::OrganizationName, "Simulated Tenpay.com");
        name.push(DnType::CommonName, "Simulated WeChat Pay platform");
        let mut params = CertificateParams::default();
        params.not_before = epoch + Duration::from_secs(not_before_unix.unsigned_abs());
        params.not_after = epoch + Duration::from_secs(not_after_unix.unsigned_abs());
        params.serial_number = Some(SerialNumber::from_slice(&serial));
        params.distinguished_name = name;
        let certificate = params
            .self_signed(&rcgen_pair(pkcs8_der)?)
            .map_err(KeyError::Certificate)?;
        let serial_hex: String = serial.iter().map(|byte| format!("{byte:02X}")).collect();
        Ok(Self {
            certificate_pem: Some(certificate.pem()),
            ..Self::from_pkcs8(serial_hex, pkcs8_der)?
        })
    }

    /// The serial: 40 upper-case hex digits in certificate mode, else the id given.
    pub fn serial(&self) -> &str {
        &self.serial
    }

    /// The public key as PEM (`BEGIN PUBLIC KEY`), what a merchant copies from the platform.
    pub fn public_key_pem(&self) -> &str {
        &self.public_key_pem
    }

    /// The platform certificate as PEM; none in public-key mode.
    pub fn certificate_pem(&self) -> Option<&str> {
        self.certificate_pem.as_deref()
    }

    /// The private key as PKCS#8 DER, to be read again by [`SigningKey::from_pkcs8`].
    pub fn pkcs8_der(&self) -> &[u8] {
        &self.pkcs8_der
    }

    /// Signs `message` as `WECHATPAY2-SHA256-RSA2048` does: RSA PKCS#1 v1.5 over SHA-256.
    ///
    /// Shapes: returns 344 characters of base64.
    pub fn sign(&self, message: &[u8]) -> String {
        let mut signature = vec![0; self.pair.public_modulus_len()];
        self.pair
            .sign(
                &RSA_PKCS1_SHA256,
                &SystemRandom::new(),
                message,
                &mut signature,
            )
            .expect("a checked RSA-2048 key signs any message, short of memory running out");
        STANDARD.encode(signature)
    }
}

impl fmt::Debug for SigningKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("SigningKey")
            .field("serial", &self.serial)
            .finish_non_exhaustive()
    }
}

/// A new RSA-2048 key as PKCS#8 DER.
fn generate() -> Result<Vec<u8>, KeyError> {
    let pair = KeyPair::generate(KeySize::Rsa2048).map_err(|_| KeyError::Generate)?;
    let der = AsDer::<Pkcs8V1Der<'_>>::as_der(&pair).map_err(|_| KeyError::Generate)?;
    Ok(der.as_ref().to_vec())
}

/// The same key for the certificate writer, which has a key type of its own.
fn rcgen_pair(pkcs8_der: &[u8]) -> Result<rcgen::KeyPair, KeyError> {
    rcgen::KeyPair::from_pkcs8_der_and_sign_algo(&pkcs8_der.into(), &PKCS_RSA_SHA256)
        .map_err(|e| KeyError::Pkcs8(e.to_string()))
}

/// A random serial of 20 bytes. The first one is 0x01 to 0x7F: a DER integer then needs no padding and loses no leading
/// zero, so the hex text has 40 digits however it is read.
fn certificate_serial() -> Result<[u8; 20], KeyError> {
    let mut serial = [0; 20];
    SystemRandom::new()
        .fill(&mut serial)
        .map_err(|_| KeyError::Generate)?;
    serial[0] = (serial[0] & 0x7F).max(1);
    Ok(serial)
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use x509_parser::pem::parse_x509_pem;

    use super::*;
    use crate::vector::{signing_key, spki_der, verify};

    const DAY: i64 = 86_400;

    #[test]
    fn a_signature_verifies_with_the_published_key() {
        let key = signing_key();
        let signature = key.sign(b"message");
        assert_eq!(signature.len(), 344);
        assert!(verify(key.public_key_pem(), b"message", &signature));
        assert!(!verify(key.public_key_pem(), b"massage", &signature));
    }

    #[test]
    fn a_key_survives_der_and_pem() {
        let key = signing_key();
        let der = STANDARD.encode(key.pkcs8_der());
        let pem = format!("-----BEGIN PRIVATE KEY-----\n{der}\n-----END PRIVATE KEY-----\n");
        for again in [
            SigningKey::from_pkcs8("A", key.pkcs8_der()).unwrap(),
            SigningKey::from_pkcs8_pem("A", &pem).unwrap(),
        ] {
            assert_eq!(again.serial(), "A");
            assert_eq!(again.public_key_pem(), key.public_key_pem());
            assert_eq!(again.sign(b"message"), key.sign(b"message"));
        }
    }

    #[test]
    fn a_certificate_says_what_was_announced() {
        let (from, until) = (1_788_000_000, 1_788_000_000 + 5 * 365 * DAY);
        let bare = signing_key();
        let key = SigningKey::certificate_from_pkcs8(bare.pkcs8_der(), from, until).unwrap();
        let (_, pem) = parse_x509_pem(key.certificate_pem().unwrap().as_bytes()).unwrap();
        let certificate = pem.parse_x509().unwrap();
        let hex: String = certificate
            .raw_serial()
            .iter()
            .map(|byte| format!("{byte:02X}"))
            .collect();
        assert_eq!(hex, key.serial());
        assert_eq!(hex.len(), 40);
        assert_eq!(certificate.validity().not_before.timestamp(), from);
        assert_eq!(certificate.validity().not_after.timestamp(), until);
        assert_eq!(
            certificate.public_key().raw,
            spki_der(key.public_key_pem()).as_slice()
        );
        let other = SigningKey::certificate_from_pkcs8(bare.pkcs8_der(), from, until).unwrap();
        assert_ne!(other.serial(), key.serial());
    }

    #[test]
    fn new_keys_differ_in_both_modes() {
        let bare = SigningKey::public_key("PUB_KEY_ID_1").unwrap();
        let certified = SigningKey::certificate(0, UNIX_MAX).unwrap();
        assert_eq!(bare.certificate_pem(), None);
        assert_ne!(bare.public_key_pem(), certified.public_key_pem());
        assert!(verify(
            certified.public_key_pem(),
            b"x",
            &certified.sign(b"x")
        ));
    }

    #[test]
    fn unusable_input_is_refused() {
        let key = signing_key();
        let der = key.pkcs8_der();
        for (from, until) in [(-1, 1), (2, 1), (0, UNIX_MAX + 1)] {
            let made = SigningKey::certificate_from_pkcs8(der, from, until);
            assert!(matches!(made, Err(KeyError::Dates)), "{from} {until}");
        }
        assert!(matches!(
            SigningKey::from_pkcs8("A", b"no key"),
            Err(KeyError::Pkcs8(_))
        ));
        assert!(matches!(
            SigningKey::from_pkcs8_pem("A", "no key"),
            Err(KeyError::Pkcs8(_))
        ));
        for bad in [
            "short",
            "0123456789012345678901234567890 ",
            "0123456789012345678901234567密",
        ] {
            let made = Merchant::new("1900000109", bad, signing_key());
            assert!(matches!(made, Err(KeyError::ApiV3Key)), "{bad}");
        }
    }

    #[test]
    fn secrets_stay_out_of_debug_text() {
        let merchant = Merchant::new("1900000109", crate::vector::API_V3_KEY, signing_key());
        let text = format!("{:?}", merchant.unwrap());
        assert!(!text.contains(crate::vector::API_V3_KEY), "{text}");
    }
}

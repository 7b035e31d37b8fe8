//! Which key a serial names, and which APIv3 keys its merchants hold.
//!
//! Public keys and platform certificates stand side by side; the serial alone chooses. Built once
//! from checked configuration, then only read. Reading files is left to the caller.

use std::collections::HashMap;

use aes_gcm::{Aes256Gcm, KeyInit};
use aws_lc_rs::signature::{ParsedPublicKey, RSA_PKCS1_2048_8192_SHA256};
use x509_parser::pem::Pem;
use x509_parser::prelude::{FromDer, X509Certificate};
use zeroize::Zeroizing;

use super::types::{Mchid, UnixMs};

/// An APIv3 key: 32 bytes, as typed on the merchant platform.
pub type ApiV3Key = Zeroizing<[u8; 32]>;

/// What one merchant brings to the ring.
pub struct MerchantKeys {
    /// The merchant number.
    pub mchid: Mchid,
    /// Its APIv3 keys, newest first.
    pub api_v3_keys: Vec<ApiV3Key>,
    /// The keys that WeChat Pay signs this merchant's notices with.
    pub verify_keys: Vec<TrustedKey>,
}

/// A key to verify signatures with.
pub struct TrustedKey {
    /// As the `Wechatpay-Serial` header names it.
    pub serial: String,
    /// End of a platform certificate; a public key has none.
    pub not_after: Option<UnixMs>,
    /// The public key as DER, to compare keys by.
    pub der: Vec<u8>,
    key: ParsedPublicKey,
}

/// Why a key file is of no use.
#[derive(Debug, PartialEq, Eq, thiserror::Error)]
pub enum KeyError {
    /// Neither a public key nor a certificate in PEM.
    #[error("no PEM block `PUBLIC KEY` or `CERTIFICATE` in it")]
    Pem,
    /// A certificate that cannot be read.
    #[error("the certificate cannot be read")]
    Certificate,
    /// Not an RSA key of 2048 to 8192 bits.
    #[error("not an RSA public key of 2048 bits or more")]
    NotRsa,
    /// A bare public key carries no serial of its own.
    #[error("a public key needs `serial`, the PUB_KEY_ID that the merchant platform shows")]
    SerialMissing,
    /// The configured serial is not the certificate's.
    #[error("`serial` is not the certificate's own, {0}")]
    SerialDiffers(String),
}

impl TrustedKey {
    /// Reads a PEM text: a public key with its `serial`, or a certificate, whose serial is its own.
    ///
    /// Errors: [`KeyError`].
    pub fn from_pem(pem: &[u8], serial: Option<&str>) -> Result<TrustedKey, KeyError> {
        let block = Pem::iter_from_buffer(pem)
            .filter_map(Result::ok)
            .find(|block| block.label.ends_with("PUBLIC KEY") || block.label == "CERTIFICATE")
            .ok_or(KeyError::Pem)?;
        let (serial, not_after, der) = if block.label == "CERTIFICATE" {
            let (_, certificate) =
                X509Certificate::from_der(&block.contents).map_err(|_| KeyError::Certificate)?;
            let own = certificate_serial(certificate.tbs_certificate.raw_serial());
            if serial.is_some_and(|given| given != own) {
                return Err(KeyError::SerialDiffers(own));
            }
            let ends = certificate.validity().not_after.timestamp();
            (
                own,
                Some(UnixMs(ends.saturating_mul(1000))),
                certificate.public_key().raw.to_vec(),
            )
        } else {
            let serial = serial.ok_or(KeyError::SerialMissing)?;
            (serial.to_owned(), None, block.contents)
        };
        let key = ParsedPublicKey::new(&RSA_PKCS1_2048_8192_SHA256, &der)
            .map_err(|_| KeyError::NotRsa)?;
        Ok(TrustedKey {
            serial,
            not_after,
            der,
            key,
        })
    }
}

/// Upper-case hexadecimal of a certificate's serial number, without the zero byte that DER puts
/// before a number whose first bit is set.
fn certificate_serial(raw: &[u8]) -> String {
    let bytes = match raw {
        [0, rest @ ..] if !rest.is_empty() => rest,
        all => all,
    };
    hex::encode_upper(bytes)
}

/// A verification key in the ring, with the merchants that hold it.
pub struct VerifyKey {
    /// As the header names it.
    pub serial: String,
    /// End of a platform certificate.
    pub not_after: Option<UnixMs>,
    /// Places in [`KeyRing::merchants`], in the order of the configuration, never empty.
    merchants: Vec<usize>,
    der: Vec<u8>,
    key: ParsedPublicKey,
}

impl VerifyKey {
    /// Whether `signature` is this key's over `message`.
    pub fn verifies(&self, message: &[u8], signature: &[u8]) -> bool {
        self.key.verify_sig(message, signature).is_ok()
    }
}

/// One merchant as the ring holds it.
pub struct Merchant {
    /// The merchant number.
    pub mchid: Mchid,
    /// Places in [`KeyRing::ciphers`], newest key first.
    api_v3_keys: Vec<usize>,
}

/// All keys of all merchants.
pub struct KeyRing {
    merchants: Vec<Merchant>,
    by_mchid: HashMap<String, usize>,
    by_serial: HashMap<String, VerifyKey>,
    /// One cipher for each distinct APIv3 key, so that merchants with one key share its place.
    ciphers: Vec<Aes256Gcm>,
}

/// Two entries of the configuration that exclude each other.
#[derive(Debug, PartialEq, Eq, thiserror::Error)]
pub enum RingError {
    /// One serial, two keys.
    #[error("serial {0} stands under several merchants with different keys")]
    SerialTwice(String),
    /// One merchant, two entries.
    #[error("merchant {0} is configured twice")]
    MerchantTwice(Mchid),
}

impl KeyRing {
    /// Builds the ring.
    ///
    /// Errors: [`RingError`], the first.
    pub fn new(merchants: Vec<MerchantKeys>) -> Result<KeyRing, RingError> {
        let mut ring = KeyRing {
            merchants: Vec::with_capacity(merchants.len()),
            by_mchid: HashMap::new(),
            by_serial: HashMap::new(),
            ciphers: Vec::new(),
        };
        let mut places: HashMap<[u8; 32], usize> = HashMap::new();
        for entry in merchants {
            let at = ring.merchants.len();
            let mchid = entry.mchid.as_str().to_owned();
            if ring.by_mchid.insert(mchid, at).is_some() {
                return Err(RingError::MerchantTwice(entry.mchid));
            }
            let mut api_v3_keys = Vec::new();
            for key in &entry.api_v3_keys {
                let place = *places.entry(**key).or_insert_with(|| {
                    ring.ciphers.push(Aes256Gcm::new((&**key).into()));
                    ring.ciphers.len() - 1
                });
                api_v3_keys.push(place);
            }
            for trusted in entry.verify_keys {
                ring.trust(trusted, at)?;
            }
            ring.merchants.push(Merchant {
                mchid: entry.mchid,
                api_v3_keys,
            });
        }
        for (mut key, _) in places {
            zeroize::Zeroize::zeroize(&mut key);
        }
        Ok(ring)
    }

    fn trust(&mut self, trusted: TrustedKey, merchant: usize) -> Result<(), RingError> {
        match self.by_serial.get_mut(&trusted.serial) {
            Some(known) if known.der != trusted.der => {
                return Err(RingError::SerialTwice(trusted.serial));
            }
            Some(known) => {
                if !known.merchants.contains(&merchant) {
                    known.merchants.push(merchant);
                }
            }
            None => {
                self.by_serial.insert(
                    trusted.serial.clone(),
                    VerifyKey {
                        serial: trusted.serial,
                        not_after: trusted.not_after,
                        merchants: vec![merchant],
                        der: trusted.der,
                        key: trusted.key,
                    },
                );
            }
        }
        Ok(())
    }

    /// The key with exactly this serial.
    pub fn by_serial(&self, serial: &str) -> Option<&VerifyKey> {
        self.by_serial.get(serial)
    }

    /// Serial and end of each platform certificate.
    pub fn certificates(&self) -> Vec<(String, UnixMs)> {
        let ends = |key: &VerifyKey| Some((key.serial.clone(), key.not_after?));
        self.by_serial.values().filter_map(ends).collect()
    }

    /// Whether a merchant of this number is configured.
    pub fn knows(&self, mchid: &str) -> bool {
        self.by_mchid.contains_key(mchid)
    }

    /// The merchants of a key: those that hold it, or of these the one that a route is bound to.
    /// Empty when the bound merchant does not hold it.
    pub fn merchants_of<'a>(
        &'a self,
        key: &'a VerifyKey,
        bound: Option<&str>,
    ) -> Vec<&'a Merchant> {
        key.merchants
            .iter()
            .map(|at| &self.merchants[*at])
            .filter(|merchant| bound.is_none_or(|mchid| merchant.mchid.as_str() == mchid))
            .collect()
    }

    /// The first merchant of a key, in the order of the configuration.
    pub fn first_of<'a>(&'a self, key: &VerifyKey) -> &'a Merchant {
        &self.merchants[key.merchants[0]]
    }

    /// The distinct APIv3 keys of these merchants, in order, each with its place.
    pub(super) fn ciphers_of<'a>(
        &'a self,
        merchants: &[&Merchant],
    ) -> impl Iterator<Item = (usize, &'a Aes256Gcm)> {
        let mut places: Vec<usize> = Vec::new();
        for place in merchants.iter().flat_map(|m| &m.api_v3_keys) {
            if !places.contains(place) {
                places.push(*place);
            }
        }
        places
            .into_iter()
            .map(|place| (place, &self.ciphers[place]))
    }
}

impl Merchant {
    /// Whether this merchant holds the APIv3 key at `place`.
    pub(super) fn holds(&self, place: usize) -> bool {
        self.api_v3_keys.contains(&place)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn serial_text_drops_the_sign_byte_only() {
        assert_eq!(certificate_serial(&[0, 0xAB, 0x01]), "AB01");
        assert_eq!(certificate_serial(&[0x0A, 0xB0]), "0AB0");
        assert_eq!(certificate_serial(&[0]), "00");
    }

    #[test]
    fn a_file_that_holds_no_key_is_named_as_such() {
        let error = |pem: &[u8], serial| TrustedKey::from_pem(pem, serial).err();
        assert_eq!(error(b"", Some("S")), Some(KeyError::Pem));
        let rubbish = b"-----BEGIN PUBLIC KEY-----\nAAAA\n-----END PUBLIC KEY-----\n";
        assert_eq!(error(rubbish, Some("S")), Some(KeyError::NotRsa));
        assert_eq!(error(rubbish, None), Some(KeyError::SerialMissing));
        let rubbish = b"-----BEGIN CERTIFICATE-----\nAAAA\n-----END CERTIFICATE-----\n";
        assert_eq!(error(rubbish, None), Some(KeyError::Certificate));
    }
}

//! Notices: the refund object, its encryption, and the envelope around it.
//!
//! A [`RefundNotice`] is what is said, an [`Envelope`] how it is wrapped; sealing an envelope gives the body of the
//! POST. Members stand in the order of live messages. An envelope takes any text as its plaintext, so payments, unknown
//! events and garbled objects can be made too. Signing is left to [`crate::delivery`].

use aws_lc_rs::aead::{AES_256_GCM, Aad, LessSafeKey, Nonce, UnboundKey};
use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use jiff::{Timestamp, tz};
use serde::Serialize;

use crate::seeded::Seeded;

/// Whose refund it is, which decides the first members of the refund object.
#[derive(Clone, Debug)]
pub enum Form {
    /// A merchant of its own: `mchid`.
    Direct {
        /// The merchant number.
        mchid: String,
    },
    /// A service provider acting for a merchant: `sp_mchid` and `sub_mchid`.
    Partner {
        /// The service provider's number.
        sp_mchid: String,
        /// The merchant's number.
        sub_mchid: String,
    },
    /// An e-commerce platform acting for a merchant: as for partners, and `refund_account`.
    Ecommerce {
        /// The platform's number.
        sp_mchid: String,
        /// The merchant's number.
        sub_mchid: String,
        /// Who pays, such as `REFUND_SOURCE_SUB_MERCHANT`.
        refund_account: String,
    },
}

/// The content of one refund notice. Nothing is checked, so impossible refunds can be made as well.
#[derive(Clone, Debug)]
pub struct RefundNotice {
    /// Whose refund it is.
    pub form: Form,
    /// The merchant's refund number.
    pub out_refund_no: String,
    /// The platform's refund number.
    pub refund_id: String,
    /// The merchant's order number.
    pub out_trade_no: String,
    /// The platform's payment number.
    pub transaction_id: String,
    /// `SUCCESS`, `CLOSED`, `ABNORMAL`, or any other text.
    pub status: String,
    /// What this refund gives back, in fen.
    pub refund_fen: i64,
    /// What the order cost, in fen.
    pub total_fen: i64,
    /// What goes back in cash, in fen; `refund_fen` when none.
    pub payer_refund_fen: Option<i64>,
    /// What was paid in cash, in fen; `total_fen` when none.
    pub payer_total_fen: Option<i64>,
    /// When the money was returned, in ms since the Unix epoch; the member is left out when none.
    pub success_time_ms: Option<i64>,
    /// `amount.currency`; the member is left out when none, as in domestic notices.
    pub currency: Option<String>,
    /// Where the money went, as text for people.
    pub user_received_account: String,
}

impl RefundNotice {
    /// A refund of `refund_fen` out of `total_fen`; the other members take plain values and can be set afterwards.
    ///
    /// Units: fen.
    pub fn new(
        form: Form,
        out_refund_no: impl Into<String>,
        refund_id: impl Into<String>,
        status: impl Into<String>,
        refund_fen: i64,
        total_fen: i64,
    ) -> Self {
        Self {
            form,
            out_refund_no: out_refund_no.into(),
            refund_id: refund_id.into(),
            out_trade_no: "ORDER20260909000001".into(),
            transaction_id: "4200001800000000000000007919".into(),
            status: status.into(),
            refund_fen,
            total_fen,
            payer_refund_fen: None,
            payer_total_fen: None,
            success_time_ms: None,
            currency: None,
            user_received_account: "支付用户零钱".into(),
        }
    }

    /// The refund object as JSON, before encryption.
    pub fn plaintext(&self) -> String {
        let (mchid, sp_mchid, sub_mchid, refund_account) = match &self.form {
            Form::Direct { mchid } => (Some(mchid), None, None, None),
            Form::Partner {
                sp_mchid,
                sub_mchid,
            } => (None, Some(sp_mchid), Some(sub_mchid), None),
            Form::Ecommerce {
                sp_mchid,
                sub_mchid,
                refund_account,
            } => (None, Some(sp_mchid), Some(sub_mchid), Some(refund_account)),
        };
        json(&RefundObject {
            mchid,
            sp_mchid,
            sub_mchid,
            refund_account,
            out_trade_no: &self.out_trade_no,
            transaction_id: &self.transaction_id,
            out_refund_no: &self.out_refund_no,
            refund_id: &self.refund_id,
            refund_status: &self.status,
            success_time: self.success_time_ms.map(beijing_time),
            amount: Amount {
                total: self.total_fen,
                refund: self.refund_fen,
                payer_total: self.payer_total_fen.unwrap_or(self.total_fen),
                payer_refund: self.payer_refund_fen.unwrap_or(self.refund_fen),
                currency: self.currency.as_deref(),
            },
            user_received_account: &self.user_received_account,
        })
    }

    /// Wraps the refund: event `REFUND.<status>`, a Chinese summary, associated data `refund`, a nonce from `random`.
    ///
    /// Units: `create_time_ms` in ms since the Unix epoch.
    pub fn envelope(
        &self,
        id: impl Into<String>,
        create_time_ms: i64,
        random: &mut Seeded,
    ) -> Envelope {
        let summary = match self.status.as_str() {
            "SUCCESS" => "退款成功",
            "ABNORMAL" | "CHANGE" => "退款异常",
            "CLOSED" | "CLOSE" | "REFUNDCLOSE" => "退款关闭",
            _ => "退款通知",
        };
        Envelope {
            id: id.into(),
            create_time_ms,
            event_type: format!("REFUND.{}", self.status),
            summary: summary.into(),
            original_type: "refund".into(),
            associated_data: "refund".into(),
            nonce: random.gcm_nonce(),
            plaintext: self.plaintext(),
        }
    }
}

/// The outer JSON of a notice, with its resource not yet encrypted. Every member can be set to anything.
#[derive(Clone, Debug)]
pub struct Envelope {
    /// The id of the notice, up to 36 characters.
    pub id: String,
    /// When the event happened, in ms since the Unix epoch; redeliveries do not renew it.
    pub create_time_ms: i64,
    /// Such as `REFUND.SUCCESS` or `TRANSACTION.SUCCESS`.
    pub event_type: String,
    /// Text for people.
    pub summary: String,
    /// Such as `refund` or `transaction`.
    pub original_type: String,
    /// What the tag covers besides the ciphertext; up to 15 bytes in live messages.
    pub associated_data: String,
    /// The nonce of the encryption, 12 ASCII bytes.
    pub nonce: [u8; 12],
    /// What is encrypted: JSON in proper notices, any text in garbled ones.
    pub plaintext: String,
}

impl Envelope {
    /// Encrypts the plaintext and writes the body of the POST.
    pub fn seal(&self, api_v3_key: &[u8; 32]) -> Vec<u8> {
        let aad = self.associated_data.as_bytes();
        json(&EnvelopeObject {
            id: &self.id,
            create_time: beijing_time(self.create_time_ms),
            resource_type: "encrypt-resource",
            event_type: &self.event_type,
            summary: &self.summary,
            resource: Resource {
                original_type: &self.original_type,
                algorithm: "AEAD_AES_256_GCM",
                ciphertext: encrypt(api_v3_key, &self.nonce, aad, self.plaintext.as_bytes()),
                associated_data: &self.associated_data,
                nonce: String::from_utf8_lossy(&self.nonce).into_owned(),
            },
        })
        .into_bytes()
    }
}

#[derive(Serialize)]
struct RefundObject<'a> {
    #[serde(skip_serializing_if = "Option::is_none")]
    mchid: Option<&'a String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    sp_mchid: Option<&'a String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    sub_mchid: Option<&'a String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    refund_account: Option<&'a String>,
    out_trade_no: &'a str,
    transaction_id: &'a str,
    out_refund_no: &'a str,
    refund_id: &'a str,
    refund_status: &'a str,
    #[serde(skip_serializing_if = "Option::is_none")]
    success_time: Option<String>,
    amount: Amount<'a>,
    user_received_account: &'a str,
}

#[derive(Serialize)]
struct Amount<'a> {
    total: i64,
    refund: i64,
    payer_total: i64,
    payer_refund: i64,
    #[serde(skip_serializing_if = "Option::is_none")]
    currency: Option<&'a str>,
}

#[derive(Serialize)]
struct EnvelopeObject<'a> {
    id: &'a str,
    create_time: String,
    resource_type: &'a str,
    event_type: &'a str,
    summary: &'a str,
    resource: Resource<'a>,
}

#[derive(Serialize)]
struct Resource<'a> {
    original_type: &'a str,
    algorithm: &'a str,
    ciphertext: String,
    associated_data: &'a str,
    nonce: String,
}

/// Encrypts as `AEAD_AES_256_GCM` does.
///
/// Shapes: returns base64, with padding, of the ciphertext followed by the 16-byte tag.
pub fn encrypt(api_v3_key: &[u8; 32], nonce: &[u8; 12], aad: &[u8], plaintext: &[u8]) -> String {
    let key = UnboundKey::new(&AES_256_GCM, api_v3_key).expect("the key has 32 bytes");
    let mut sealed = plaintext.to_vec();
    LessSafeKey::new(key)
        .seal_in_place_append_tag(
            Nonce::assume_unique_for_key(*nonce),
            Aad::from(aad),
            &mut sealed,
        )
        .expect("only a plaintext of more than 64 GiB is refused");
    STANDARD.encode(sealed)
}

/// RFC 3339 in Beijing time, in whole seconds; moments outside the years -9999 to 9999 become the nearest one inside.
fn beijing_time(unix_ms: i64) -> String {
    let nearest = if unix_ms < 0 {
        Timestamp::MIN
    } else {
        Timestamp::MAX
    };
    Timestamp::from_second(unix_ms.div_euclid(1_000))
        .unwrap_or(nearest)
        .display_with_offset(tz::offset(8))
        .to_string()
}

fn json(value: &impl Serialize) -> String {
    serde_json::to_string(value).expect("structs of text and whole numbers have a JSON form")
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use serde_json::Value;

    use super::*;
    use crate::vector::{API_V3_KEY, BODY, PLAINTEXT};

    fn direct() -> Form {
        Form::Direct {
            mchid: "1900000109".into(),
        }
    }

    /// The refund of the published example.
    fn example() -> RefundNotice {
        let mut notice = RefundNotice::new(
            direct(),
            "REFUND20260909000001",
            "50300000000000000000000104729",
            "SUCCESS",
            999,
            999,
        );
        notice.success_time_ms = Some(1_788_999_940_000);
        notice.user_received_account = "招商银行信用卡0403".into();
        notice
    }

    fn decrypt(api_v3_key: &[u8; 32], resource: &Value) -> Option<String> {
        let text = |name: &str| resource[name].as_str().unwrap();
        let mut sealed = STANDARD.decode(text("ciphertext")).unwrap();
        let key = LessSafeKey::new(UnboundKey::new(&AES_256_GCM, api_v3_key).unwrap());
        let nonce = Nonce::try_assume_unique_for_key(text("nonce").as_bytes()).unwrap();
        let opened = key.open_in_place(
            nonce,
            Aad::from(text("associated_data").as_bytes()),
            &mut sealed,
        );
        Some(String::from_utf8(opened.ok()?.to_vec()).unwrap())
    }

    fn api_v3_key() -> &'static [u8; 32] {
        API_V3_KEY.as_bytes().try_into().unwrap()
    }

    #[test]
    fn the_published_ciphertext_opens() {
        let body: Value = serde_json::from_str(BODY).unwrap();
        assert_eq!(
            decrypt(api_v3_key(), &body["resource"]).as_deref(),
            Some(PLAINTEXT)
        );
    }

    #[test]
    fn the_published_body_comes_out_byte_by_byte() {
        assert_eq!(example().plaintext(), PLAINTEXT);
        let mut envelope = example().envelope(
            "a509d693-f300-5847-973f-6516726d49ef",
            1_788_999_997_000,
            &mut Seeded::new(1),
        );
        envelope.nonce = *b"ZJZvd1O2Kt3f";
        let body = String::from_utf8(envelope.seal(api_v3_key())).unwrap();
        assert_eq!(body, BODY);
    }

    #[test]
    fn what_is_sealed_opens_with_the_right_key_only() {
        let mut envelope = example().envelope("id", 0, &mut Seeded::new(2));
        for plaintext in ["", "no JSON", "{\"中文\":1}"] {
            envelope.plaintext = plaintext.into();
            let body: Value = serde_json::from_slice(&envelope.seal(api_v3_key())).unwrap();
            let resource = &body["resource"];
            assert_eq!(decrypt(api_v3_key(), resource).as_deref(), Some(plaintext));
            assert_eq!(decrypt(&[b'x'; 32], resource), None);
        }
    }

    #[test]
    fn the_forms_differ_in_their_first_members() {
        let (sp_mchid, sub_mchid) = ("1900000100".to_owned(), "1900000118".to_owned());
        let mut notice = example();
        notice.form = Form::Partner {
            sp_mchid: sp_mchid.clone(),
            sub_mchid: sub_mchid.clone(),
        };
        let start = r#"{"sp_mchid":"1900000100","sub_mchid":"1900000118","#;
        let text = notice.plaintext();
        assert!(
            text.starts_with(&format!("{start}\"out_trade_no\"")),
            "{text}"
        );
        notice.form = Form::Ecommerce {
            sp_mchid,
            sub_mchid,
            refund_account: "REFUND_SOURCE_SUB_MERCHANT".into(),
        };
        let text = notice.plaintext();
        let account = r#""refund_account":"REFUND_SOURCE_SUB_MERCHANT","#;
        assert!(text.starts_with(&format!("{start}{account}")), "{text}");
    }

    #[test]
    fn optional_members_appear_when_set() {
        let mut notice = example();
        notice.status = "ABNORMAL".into();
        notice.success_time_ms = None;
        notice.currency = Some("CNY".into());
        notice.payer_refund_fen = Some(0);
        let object: Value = serde_json::from_str(&notice.plaintext()).unwrap();
        assert_eq!(object.get("success_time"), None);
        assert_eq!(object["amount"]["currency"], "CNY");
        assert_eq!(object["amount"]["payer_refund"], 0);
        let envelope = notice.envelope("id", 0, &mut Seeded::new(3));
        assert_eq!(envelope.event_type, "REFUND.ABNORMAL");
        assert_eq!(envelope.summary, "退款异常");
    }

    #[test]
    fn times_are_beijing_times_without_fraction() {
        assert_eq!(beijing_time(1_788_999_940_999), "2026-09-10T08:25:40+08:00");
        assert_eq!(beijing_time(-1), "1970-01-01T07:59:59+08:00");
        assert!(beijing_time(i64::MAX).ends_with("+08:00"));
        assert!(beijing_time(i64::MIN).ends_with("+08:00"));
    }
}

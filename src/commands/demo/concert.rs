//! The cancelled concert: its orders and refunds, and what WeChat Pay sends about them.

use platform::{Delivery, Form, Merchant, RefundNotice, Seeded, SigningKey, sign_all};

use crate::core::sql::shop::{NewOrder, NewRefund};

/// The made-up merchants: one on a public key, one on a platform certificate.
pub(super) const MCHIDS: [&str; 2] = ["1900009001", "1900009002"];
const PUBLIC_KEY_ID: &str = "PUB_KEY_ID_0119000090012026000000000001";
/// A made-up certificate is good for a day either side.
const CERTIFICATE_S: i64 = 86_400;

/// One refund: the part of an order.
struct Refund {
    merchant: usize,
    order: usize,
    part: u32,
    refund_fen: i64,
    total_fen: i64,
    /// Registered by the shop only when notices have come already.
    is_late: bool,
}

/// What one delivery says.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Kind {
    /// The truth.
    Success,
    /// The bank refused at first.
    Abnormal,
    /// A closing that contradicts.
    Closed,
    /// A success over other money.
    OtherMoney,
    /// Signed by somebody else.
    Forged,
    /// Signed wrongly on purpose, as WeChat Pay does.
    Probe,
}

/// One delivery about one refund.
#[derive(Clone, Copy, Debug)]
pub(super) struct Event {
    refund: usize,
    kind: Kind,
}

/// All of it, the same for the same seed.
pub(super) struct Concert {
    pub(super) seed: u64,
    refunds: Vec<Refund>,
    /// Repeats, refusals and old states, shuffled.
    pub(super) first_wave: Vec<Event>,
    /// What comes when all is settled: late and contradicting.
    pub(super) second_wave: Vec<Event>,
}

impl Concert {
    /// `count` refunds, each notice delivered `duplicates` times.
    pub(super) fn new(count: u32, duplicates: u32, seed: u64) -> Concert {
        let mut chance = Seeded::stream(seed, 0);
        let refunds = refunds(count, &mut chance);
        let (mut first_wave, mut second_wave) = (Vec::new(), Vec::new());
        // at least one of each, however small the concert is
        let some = |at: usize, every: usize| at % every == every / 2 || at == refunds.len() - 1;
        for at in 0..refunds.len() {
            let event = |kind: Kind| Event { refund: at, kind };
            first_wave.extend((0..duplicates).map(|_| event(Kind::Success)));
            if some(at, 20) {
                first_wave.extend((0..duplicates).map(|_| event(Kind::Abnormal)));
            }
            if some(at, 50) {
                first_wave.extend([
                    event(Kind::Forged),
                    event(Kind::Probe),
                    event(Kind::OtherMoney),
                ]);
                second_wave.extend([
                    event(Kind::Abnormal),
                    event(Kind::Closed),
                    event(Kind::Success),
                ]);
            }
        }
        shuffle(&mut first_wave, &mut chance);
        shuffle(&mut second_wave, &mut chance);
        Concert {
            seed,
            refunds,
            first_wave,
            second_wave,
        }
    }

    /// The paid orders.
    pub(super) fn orders(&self) -> Vec<NewOrder> {
        self.refunds
            .iter()
            .filter(|refund| refund.part == 0)
            .map(|refund| NewOrder {
                mchid: MCHIDS[refund.merchant].to_owned(),
                out_trade_no: refund.out_trade_no(),
                transaction_id: Some(refund.transaction_id()),
                total_fen: refund.total_fen,
            })
            .collect()
    }

    /// The refunds that the shop registers before it asks, as it should.
    pub(super) fn early_refunds(&self) -> Vec<NewRefund> {
        self.refunds
            .iter()
            .filter(|refund| !refund.is_late)
            .map(Refund::row)
            .collect()
    }

    /// The others.
    pub(super) fn late_refunds(&self) -> Vec<NewRefund> {
        self.refunds
            .iter()
            .filter(|refund| refund.is_late)
            .map(Refund::row)
            .collect()
    }

    /// What the ledger must hold in the end.
    pub(super) fn total_fen(&self) -> i64 {
        self.refunds.iter().map(|refund| refund.refund_fen).sum()
    }

    /// Deliveries that must not be believed.
    pub(super) fn meant_to_be_refused(&self) -> usize {
        let events = self.first_wave.iter().chain(&self.second_wave);
        events
            .filter(|event| matches!(event.kind, Kind::Forged | Kind::Probe))
            .count()
    }

    /// Encrypts and signs a block, on all cores.
    pub(super) fn deliveries(
        &self,
        events: &[Event],
        cast: &Cast,
        now_ms: i64,
        seed: u64,
    ) -> Vec<Delivery> {
        let Cast {
            merchants,
            impostor,
        } = cast;
        let mut chance = Seeded::stream(seed, 1);
        let mut places: Vec<Option<Delivery>> = Vec::with_capacity(events.len());
        let mut bodies: Vec<Vec<hyper::body::Bytes>> = vec![Vec::new(); merchants.len()];
        let mut owners: Vec<Option<usize>> = Vec::with_capacity(events.len());
        for event in events {
            let refund = &self.refunds[event.refund];
            let merchant = &merchants[refund.merchant];
            let notice = refund.notice(event.kind, now_ms);
            let body = notice
                .envelope(chance.uuid(), now_ms, &mut chance)
                .seal(merchant.api_v3_key());
            let nonce = chance.text(32);
            let (place, owner) = match event.kind {
                Kind::Forged => (
                    Some(merchant.forged(impostor, body, now_ms / 1000, &nonce)),
                    None,
                ),
                Kind::Probe => (Some(merchant.probe(body, now_ms / 1000, &nonce)), None),
                Kind::Success | Kind::Abnormal | Kind::Closed | Kind::OtherMoney => {
                    bodies[refund.merchant].push(body.into());
                    (None, Some(refund.merchant))
                }
            };
            places.push(place);
            owners.push(owner);
        }
        let mut signed: Vec<_> = merchants
            .iter()
            .zip(bodies)
            .map(|(merchant, bodies)| sign_all(merchant, bodies, now_ms / 1000, seed).into_iter())
            .collect();
        let all = places.into_iter().zip(owners).filter_map(|(place, owner)| {
            // one delivery was signed for each body, in order
            place.or_else(|| signed[owner?].next())
        });
        all.collect()
    }
}

/// Who plays beside the service.
pub(super) struct Cast {
    /// The merchants as WeChat Pay sees them.
    pub(super) merchants: Vec<Merchant>,
    /// The key of somebody who is not WeChat Pay.
    impostor: SigningKey,
}

/// The cast, all keys made on the spot.
pub(super) fn cast() -> anyhow::Result<Cast> {
    let now_s = i64::try_from(
        std::time::SystemTime::now()
            .duration_since(std::time::UNIX_EPOCH)?
            .as_secs(),
    )?;
    let keys = [
        SigningKey::public_key(PUBLIC_KEY_ID)?,
        SigningKey::certificate(now_s - CERTIFICATE_S, now_s + CERTIFICATE_S)?,
    ];
    let mut merchants = Vec::new();
    for (mchid, key) in MCHIDS.into_iter().zip(keys) {
        let mut secret = [0_u8; 16];
        aws_lc_rs::rand::fill(&mut secret).map_err(|_| anyhow::anyhow!("no random bytes"))?;
        merchants.push(Merchant::new(mchid, &hex::encode(secret), key)?);
    }
    Ok(Cast {
        merchants,
        impostor: SigningKey::public_key("nobody")?,
    })
}

/// Two orders in three are refunded whole, one in two or three parts.
fn refunds(count: u32, chance: &mut Seeded) -> Vec<Refund> {
    let mut refunds: Vec<Refund> = Vec::new();
    let mut order = 0;
    let count = usize::try_from(count).unwrap_or(usize::MAX);
    while refunds.len() < count {
        let total_fen = 5_000 + below(chance, 45_000);
        let parts = if order % 3 == 0 {
            2 + u32::from(chance.below(2) == 1)
        } else {
            1
        };
        let merchant = usize::from(chance.below(4) == 0);
        let mut left_fen = total_fen;
        for part in 0..parts {
            if refunds.len() == count {
                break;
            }
            let refund_fen = if part + 1 == parts {
                left_fen
            } else {
                1 + below(chance, left_fen / 2)
            };
            left_fen -= refund_fen;
            let is_late = refunds.len() % 40 == 20;
            refunds.push(Refund {
                merchant,
                order,
                part,
                refund_fen,
                total_fen,
                is_late,
            });
        }
        order += 1;
    }
    refunds
}

fn below(chance: &mut Seeded, bound: i64) -> i64 {
    i64::try_from(chance.below(u64::try_from(bound).unwrap_or(1))).unwrap_or(0)
}

fn shuffle(events: &mut [Event], chance: &mut Seeded) {
    for at in (1..events.len()).rev() {
        let other = chance.below(u64::try_from(at + 1).unwrap_or(1));
        events.swap(at, usize::try_from(other).unwrap_or(at));
    }
}

impl Refund {
    fn out_trade_no(&self) -> String {
        format!("CONCERT-{:07}", self.order)
    }

    fn out_refund_no(&self) -> String {
        format!("CONCERT-{:07}-R{}", self.order, self.part)
    }

    fn transaction_id(&self) -> String {
        format!("42000000{:020}", self.order)
    }

    fn row(&self) -> NewRefund {
        NewRefund {
            mchid: MCHIDS[self.merchant].to_owned(),
            out_refund_no: self.out_refund_no(),
            out_trade_no: self.out_trade_no(),
            transaction_id: Some(self.transaction_id()),
            refund_fen: self.refund_fen,
            total_fen: self.total_fen,
        }
    }

    fn notice(&self, kind: Kind, now_ms: i64) -> RefundNotice {
        let status = match kind {
            Kind::Abnormal => "ABNORMAL",
            Kind::Closed => "CLOSED",
            Kind::Success | Kind::OtherMoney | Kind::Forged | Kind::Probe => "SUCCESS",
        };
        let money = self.refund_fen + i64::from(kind == Kind::OtherMoney);
        let form = Form::Direct {
            mchid: MCHIDS[self.merchant].to_owned(),
        };
        let refund_id = format!("50300000{:018}{}", self.order, self.part);
        let mut notice = RefundNotice::new(
            form,
            self.out_refund_no(),
            refund_id,
            status,
            money,
            self.total_fen,
        );
        notice.out_trade_no = self.out_trade_no();
        notice.transaction_id = self.transaction_id();
        // repeats of one fact say one time
        notice.success_time_ms = (status == "SUCCESS").then_some(now_ms / 86_400_000 * 86_400_000);
        notice
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_concert_has_everything_in_it_and_its_money_adds_up() {
        for (count, duplicates) in [(1, 1), (7, 3), (2000, 4)] {
            let concert = Concert::new(count, duplicates, 9);
            assert_eq!(concert.refunds.len(), usize::try_from(count).unwrap_or(0));
            let success = concert
                .first_wave
                .iter()
                .filter(|e| e.kind == Kind::Success)
                .count();
            assert_eq!(success, usize::try_from(count * duplicates).unwrap_or(0));
            for kind in [Kind::Abnormal, Kind::OtherMoney, Kind::Forged, Kind::Probe] {
                assert!(
                    concert.first_wave.iter().any(|event| event.kind == kind),
                    "{kind:?}"
                );
            }
            for order in concert.orders() {
                let parts = concert
                    .refunds
                    .iter()
                    .filter(|r| r.out_trade_no() == order.out_trade_no);
                let money: i64 = parts.map(|refund| refund.refund_fen).sum();
                assert!(money > 0 && money <= order.total_fen);
            }
        }
        let all = Concert::new(2000, 1, 9);
        assert_eq!(all.early_refunds().len() + all.late_refunds().len(), 2000);
        assert!(!all.late_refunds().is_empty());
        let parts = all.refunds.iter().filter(|refund| refund.part > 0).count();
        assert!(parts > 300, "{parts}");
    }
}

//! The fields of an X.509 certificate that pinning and checks need and the TLS library does not show.
//!
//! Only certificates of the operator's own files come here, once, when a configuration is built; a peer's certificate is
//! compared or verified, never parsed by this module. All the same every length is checked.

/// What a certificate says of itself.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct CertificateFields {
    /// First valid Unix second. RFC 5280 section 4.1.2.5.
    pub(crate) not_before: i64,
    /// Last valid Unix second.
    pub(crate) not_after: i64,
    /// Whether basicConstraints says `cA`. RFC 5280 section 4.2.1.9.
    pub(crate) is_authority: bool,
}

impl CertificateFields {
    /// Issuer and subject, as they are encoded. RFC 5280 sections 4.1.2.4 and 4.1.2.6.
    pub(crate) fn names(der: &[u8]) -> Option<(&[u8], &[u8])> {
        let mut tbs = Der(Der(Der(der).take(SEQUENCE)?).take(SEQUENCE)?);
        tbs.optional(CONTEXT_0)?; // version
        tbs.take(INTEGER)?; // serial number
        tbs.take(SEQUENCE)?; // signature algorithm
        let issuer = tbs.take(SEQUENCE)?;
        tbs.take(SEQUENCE)?; // validity
        Some((issuer, tbs.take(SEQUENCE)?))
    }

    /// Reads them from DER; `None` when it is not a version 3 (or extension-less) certificate.
    pub(crate) fn parse(der: &[u8]) -> Option<Self> {
        let mut outer = Der(der);
        let mut certificate = Der(outer.take(SEQUENCE)?);
        outer.finish()?;
        let mut tbs = Der(certificate.take(SEQUENCE)?);
        tbs.optional(CONTEXT_0)?; // version
        tbs.take(INTEGER)?; // serial number
        tbs.take(SEQUENCE)?; // signature algorithm
        tbs.take(SEQUENCE)?; // issuer
        let mut validity = Der(tbs.take(SEQUENCE)?);
        let not_before = time(&mut validity)?;
        let not_after = time(&mut validity)?;
        validity.finish()?;
        tbs.take(SEQUENCE)?; // subject
        tbs.take(SEQUENCE)?; // public key
        tbs.optional(CONTEXT_1)?; // issuer unique identifier
        tbs.optional(CONTEXT_2)?; // subject unique identifier
        let is_authority = match tbs.optional(CONTEXT_3)? {
            Some(extensions) => is_authority(extensions)?,
            None => false,
        };
        tbs.finish()?;
        Some(Self {
            not_before,
            not_after,
            is_authority,
        })
    }
}

/// The `cA` bit among the extensions; false when basicConstraints is absent.
fn is_authority(extensions: &[u8]) -> Option<bool> {
    let mut wrapper = Der(extensions);
    let mut list = Der(wrapper.take(SEQUENCE)?);
    wrapper.finish()?;
    while !list.0.is_empty() {
        let mut extension = Der(list.take(SEQUENCE)?);
        let id = extension.take(OBJECT_IDENTIFIER)?;
        extension.optional(BOOLEAN)?; // critical
        let value = extension.take(OCTET_STRING)?;
        extension.finish()?;
        if id == BASIC_CONSTRAINTS {
            let mut constraints = Der(Der(value).take(SEQUENCE)?);
            return Some(constraints.optional(BOOLEAN)? == Some(&[0xff]));
        }
    }
    Some(false)
}

/// UTCTime `YYMMDDHHMMSSZ` or GeneralizedTime `YYYYMMDDHHMMSSZ`; RFC 5280 allows no other form of either.
fn time(validity: &mut Der<'_>) -> Option<i64> {
    let (tag, text) = validity.next()?;
    let (century, digits) = match tag {
        UTC_TIME => (
            None,
            text.strip_suffix(b"Z")
                .filter(|digits| digits.len() == 12)?,
        ),
        GENERALIZED_TIME => {
            let digits = text
                .strip_suffix(b"Z")
                .filter(|digits| digits.len() == 14)?;
            let (century, rest) = digits.split_at_checked(2)?;
            (Some(two_digits(century)?), rest)
        }
        _ => return None,
    };
    let mut parts = digits.chunks_exact(2).map(two_digits);
    let year = parts.next()??;
    let century = century.unwrap_or(if year < 50 { 20 } else { 19 });
    let (month, day) = (parts.next()??, parts.next()??);
    let (hour, minute, second) = (parts.next()??, parts.next()??, parts.next()??);
    let in_range = (1..=12).contains(&month)
        && (1..=31).contains(&day)
        && hour < 24
        && minute < 60
        && second < 60;
    in_range.then(|| {
        days_since_epoch(century * 100 + year, month, day) * 86_400
            + hour * 3_600
            + minute * 60
            + second
    })
}

fn two_digits(text: &[u8]) -> Option<i64> {
    match text {
        [tens @ b'0'..=b'9', ones @ b'0'..=b'9'] => {
            Some(i64::from(tens - b'0') * 10 + i64::from(ones - b'0'))
        }
        _ => None,
    }
}

/// Days from 1970-01-01 in the proleptic Gregorian calendar; the year is counted from March so that the leap day is last.
fn days_since_epoch(year: i64, month: i64, day: i64) -> i64 {
    let year = if month <= 2 { year - 1 } else { year };
    let day_of_year = (153 * ((month + 9) % 12) + 2) / 5 + day - 1;
    year * 365 + year.div_euclid(4) - year.div_euclid(100) + year.div_euclid(400) + day_of_year
        - 719_468
}

/// What is left of a run of DER values.
struct Der<'a>(&'a [u8]);

impl<'a> Der<'a> {
    /// The next tag and contents. Single-byte tags and definite lengths of up to four bytes, which is all a certificate has.
    fn next(&mut self) -> Option<(u8, &'a [u8])> {
        let (&[tag, first], rest) = self.0.split_first_chunk::<2>()?;
        let (length, rest) = match first {
            0..=0x7f => (usize::from(first), rest),
            0x81..=0x84 => {
                let (bytes, rest) = rest.split_at_checked(usize::from(first & 0x7f))?;
                let length = bytes
                    .iter()
                    .fold(0, |length, &byte| length << 8 | usize::from(byte));
                (length, rest)
            }
            _ => return None,
        };
        let (contents, rest) = rest.split_at_checked(length)?;
        self.0 = rest;
        Some((tag, contents))
    }

    fn take(&mut self, tag: u8) -> Option<&'a [u8]> {
        self.next()
            .filter(|(found, _)| *found == tag)
            .map(|(_, contents)| contents)
    }

    /// The next value if it has this tag; `None` only when it has and is broken.
    fn optional(&mut self, tag: u8) -> Option<Option<&'a [u8]>> {
        if self.0.first() == Some(&tag) {
            self.take(tag).map(Some)
        } else {
            Some(None)
        }
    }

    fn finish(&self) -> Option<()> {
        self.0.is_empty().then_some(())
    }
}

const BOOLEAN: u8 = 0x01;
const INTEGER: u8 = 0x02;
const OCTET_STRING: u8 = 0x04;
const OBJECT_IDENTIFIER: u8 = 0x06;
const UTC_TIME: u8 = 0x17;
const GENERALIZED_TIME: u8 = 0x18;
const SEQUENCE: u8 = 0x30;
const CONTEXT_0: u8 = 0xa0;
const CONTEXT_1: u8 = 0x81;
const CONTEXT_2: u8 = 0x82;
const CONTEXT_3: u8 = 0xa3;
/// 2.5.29.19.
const BASIC_CONSTRAINTS: &[u8] = &[0x55, 0x1d, 0x13];

#[cfg(test)]
mod tests {
    use rcgen::{BasicConstraints, CertificateParams, IsCa, KeyPair, date_time_ymd};

    use super::*;

    fn fields(change: impl FnOnce(&mut CertificateParams)) -> (CertificateFields, Vec<u8>) {
        let mut params = CertificateParams::new(vec!["toolshed.example".to_owned()]).unwrap();
        params.not_before = date_time_ymd(2024, 2, 29);
        params.not_after = date_time_ymd(2051, 3, 1);
        change(&mut params);
        let der = params
            .self_signed(&KeyPair::generate().unwrap())
            .unwrap()
            .der()
            .to_vec();
        (CertificateFields::parse(&der).unwrap(), der)
    }

    #[test]
    fn reads_both_forms_of_time() {
        let (fields, _) = fields(|_| ());
        assert_eq!(fields.not_before, 1_709_164_800); // UTCTime, a leap day
        assert_eq!(fields.not_after, 2_561_241_600); // GeneralizedTime from 2050 on
    }

    #[test]
    fn counts_days_like_the_calendar() {
        assert_eq!(days_since_epoch(1970, 1, 1), 0);
        assert_eq!(days_since_epoch(1969, 12, 31), -1);
        assert_eq!(
            days_since_epoch(2000, 3, 1) - days_since_epoch(2000, 2, 28),
            2
        );
        assert_eq!(
            days_since_epoch(2100, 3, 1) - days_since_epoch(2100, 2, 28),
            1
        );
        assert_eq!(days_since_epoch(9999, 12, 31), 2_932_896);
    }

    #[test]
    fn knows_authorities() {
        assert!(!fields(|_| ()).0.is_authority);
        assert!(
            !fields(|params| params.is_ca = IsCa::ExplicitNoCa)
                .0
                .is_authority
        );
        assert!(
            fields(|params| params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained))
                .0
                .is_authority
        );
        assert!(
            fields(|params| params.is_ca = IsCa::Ca(BasicConstraints::Constrained(0)))
                .0
                .is_authority
        );
    }

    #[test]
    fn refuses_every_prefix_and_a_tail() {
        let (_, der) = fields(|_| ());
        for end in 0..der.len() {
            assert_eq!(CertificateFields::parse(&der[..end]), None, "prefix {end}");
        }
        assert_eq!(CertificateFields::parse(&[&der[..], &[0]].concat()), None);
        assert_eq!(
            CertificateFields::parse(b"-----BEGIN CERTIFICATE-----"),
            None
        );
    }
}

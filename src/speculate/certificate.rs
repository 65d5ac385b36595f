#![forbid(unsafe_code)]
//! Certificates, and who is admitted under which.
//!
//! # Invariants
//! A certificate promises less than the engine does: drafts change no bit of what is emitted, and the class says "distribution
//! exact" because that is what the contract grants to these strategies.
//!
//! # Limits
//! A bias is no criterion (R-56 names none): `bias` tells the host what a certificate speaks of, and decides nothing.

use super::Config;
use crate::record::constant::{cert_domain, cert_mode, exactness, sampling};

/// What a strategy is certified for.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Certificate {
    /// Its id, not 0.
    pub id: u32,
    /// `EXACTNESS_*`.
    pub exactness: u8,
    /// Bit set of `CERT_MODE_*`.
    pub modes: u8,
    /// Covers lanes with a grammar.
    pub grammar: bool,
    /// Covers lanes with a bias.
    pub bias: bool,
    /// `CERT_DOMAIN_*`.
    pub domain: u32,
    /// Samplers of hosts that it covers.
    pub host_identities: Vec<[u8; 32]>,
}

/// Class of the verification step: one row per fed token.
pub const VERIFICATION_SHAPE_CLASS: u32 = 1;
/// The certificate of drafted lanes.
const CERT_DRAFTED: u32 = 1;
/// The certificate of HOST lanes.
const CERT_HOST: u32 = 2;

/// What an admit that names a slot says of its lane.
#[derive(Clone, Copy, Debug)]
pub struct Applicant<'a> {
    /// `SAMPLING_*`.
    pub sampling: u32,
    /// Its temperature is 0, or its mode is greedy.
    pub greedy: bool,
    /// A penalty is on.
    pub penalised: bool,
    /// It has a grammar.
    pub grammar: bool,
    /// The lowest class that is good enough.
    pub minimum_exactness: u8,
    /// Rather no certificate than no lane.
    pub allow_approximate: bool,
    /// The certificate it insists on; 0 is any.
    pub required_cert_id: u32,
    /// The sampler of a HOST lane; zero is none.
    pub host_identity: &'a [u8; 32],
}

/// Under which of `certificates` a lane is admitted.
pub fn choose(certificates: &[Certificate], applicant: &Applicant<'_>) -> Admission {
    let covers = |certificate: &&Certificate| {
        (applicant.required_cert_id == 0 || certificate.id == applicant.required_cert_id)
            && certificate.exactness >= applicant.minimum_exactness
            && certificate.covers(applicant)
    };
    let covering = certificates.iter().filter(covers);
    // Of several equal ones the first: `max_by_key` would take the last.
    match covering.rev().max_by_key(|certificate| certificate.exactness) {
        Some(certificate) => Admission::Certified { cert_id: certificate.id, class: certificate.exactness },
        None if applicant.allow_approximate => Admission::Approximate,
        None => Admission::Rejected,
    }
}

/// How an applicant fares.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Admission {
    /// Under a certificate.
    Certified {
        /// Its id.
        cert_id: u32,
        /// Its `EXACTNESS_*`.
        class: u8,
    },
    /// Without one, as the host allows.
    Approximate,
    /// Not at all.
    Rejected,
}

impl Certificate {
    fn covers(&self, applicant: &Applicant<'_>) -> bool {
        let mode = match applicant.sampling {
            sampling::GPU_GREEDY => cert_mode::GREEDY,
            sampling::GPU_GUMBEL => cert_mode::GUMBEL,
            _ => cert_mode::HOST,
        };
        let named = mode != cert_mode::HOST
            || (applicant.host_identity != &[0; 32] && self.host_identities.contains(applicant.host_identity));
        //
        let inside = match self.domain {
            cert_domain::GREEDY_ONLY => applicant.greedy && !applicant.penalised,
            cert_domain::PENALTY_FREE => !applicant.penalised,
            cert_domain::ANY => true,
            _ => false,
        };
        self.modes & mode != 0 && named && inside && (self.grammar || !applicant.grammar)
    }
}

/// R-52, and one for HOST lanes when they are asked for: their rows are what they are without drafts, as they never draft.
pub(super) fn certificates(config: &Config, host_compatible: bool, host_identities: &[[u8; 32]]) -> Vec<Certificate> {
    let drafted = Certificate {
        id: CERT_DRAFTED,
        exactness: exactness::DISTRIBUTION_EXACT,
        modes: cert_mode::GREEDY | cert_mode::GUMBEL,
        grammar: config.shaped,
        bias: config.shaped,
        domain: cert_domain::ANY,
        host_identities: Vec::new(),
    };
    let host = host_compatible.then(|| Certificate {
        id: CERT_HOST,
        modes: cert_mode::HOST,
        host_identities: host_identities.to_vec(),
        ..drafted.clone()
    });
    std::iter::once(drafted).chain(host).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn applicant() -> Applicant<'static> {
        Applicant {
            sampling: sampling::GPU_GREEDY,
            greedy: true,
            penalised: false,
            grammar: false,
            minimum_exactness: 0,
            allow_approximate: false,
            required_cert_id: 0,
            host_identity: &[0; 32],
        }
    }

    /// each criterion by itself.
    #[test]
    fn certificate_covers_what_it_says() {
        let granted = certificates(&Config::default(), false, &[]);
        let certified = Admission::Certified { cert_id: 1, class: exactness::DISTRIBUTION_EXACT };
        let choose = |change: &dyn Fn(&mut Applicant<'_>)| {
            let mut applicant = applicant();
            change(&mut applicant);
            super::choose(&granted, &applicant)
        };
        assert_eq!(choose(&|_| {}), certified);
        assert_eq!(choose(&|a| a.sampling = sampling::GPU_GUMBEL), certified);
        assert_eq!(choose(&|a| a.penalised = true), certified, "domain ANY");
        assert_eq!(choose(&|a| a.minimum_exactness = 1), certified);
        assert_eq!(choose(&|a| a.minimum_exactness = 2), Admission::Rejected);
        assert_eq!(choose(&|a| (a.minimum_exactness, a.allow_approximate) = (2, true)), Admission::Approximate);
        assert_eq!(choose(&|a| a.required_cert_id = 101), Admission::Rejected);
        assert_eq!(choose(&|a| a.required_cert_id = 1), certified);
        assert_eq!(choose(&|a| a.grammar = true), Admission::Rejected);
        assert_eq!(choose(&|a| a.sampling = sampling::HOST), Admission::Rejected);
        let domain = |domain, greedy, penalised| {
            let certificate = Certificate { domain, ..granted[0].clone() };
            certificate.covers(&Applicant { greedy, penalised, ..applicant() })
        };
        let covered =
            |of| [(true, false), (false, false), (true, true)].map(|(greedy, penalised)| domain(of, greedy, penalised));
        assert_eq!(covered(cert_domain::GREEDY_ONLY), [true, false, false]);
        assert_eq!(covered(cert_domain::PENALTY_FREE), [true, true, false]);
        assert_eq!(covered(cert_domain::ANY), [true; 3]);
        assert_eq!(covered(cert_domain::NONE), [false; 3]);
    }

    /// a HOST lane needs a listed name that is not zero.
    #[test]
    fn host_lane_is_certified_by_name() {
        let granted = certificates(&Config::default(), true, &[[7; 32], [0; 32]]);
        let host = |name: &[u8; 32]| {
            choose(&granted, &Applicant { sampling: sampling::HOST, host_identity: name, ..applicant() })
        };
        assert_eq!(host(&[7; 32]), Admission::Certified { cert_id: 2, class: exactness::DISTRIBUTION_EXACT });
        assert_eq!(host(&[8; 32]), Admission::Rejected);
        assert_eq!(host(&[0; 32]), Admission::Rejected, "zero is nobody, listed or not");
    }

    /// the highest class wins, the first of equals.
    #[test]
    fn best_certificate_is_taken() {
        let base = certificates(&Config::default(), false, &[]).remove(0);
        let of = |id, exactness| Certificate { id, exactness, ..base.clone() };
        let granted = [of(1, 0), of(2, 1), of(3, 2), of(4, 2), of(5, 1)];
        assert_eq!(choose(&granted, &applicant()), Admission::Certified { cert_id: 3, class: 2 });
    }
}

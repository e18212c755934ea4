//! SASL EXTERNAL over a stream that is under TLS already (RFC 4422 appendix A): fe2o3-amqp speaks it only over TLS of
//! its own making, so the four frames are exchanged here.
use fe2o3_amqp_types::primitives::{Binary, Symbol};
use fe2o3_amqp_types::sasl::{SaslCode, SaslInit, SaslMechanisms, SaslOutcome};
use serde::de::DeserializeOwned;
use std::io;
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt};

const HEADER: [u8; 8] = *b"AMQP\x03\x01\x00\x00";
/// Limit of a frame before the connection is open (AMQP 1.0 part 2 §2.4.1).
const MAX_FRAME_SIZE: usize = 512;
const SASL_FRAME: u8 = 1;

/// Outcome of the negotiation.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum ExternalOutcome {
    Authenticated,
    NotOffered,
    Refused,
}

/// Speaks EXTERNAL.
pub(crate) async fn negotiate<Io: AsyncRead + AsyncWrite + Unpin>(
    stream: &mut Io,
    host: &str,
) -> io::Result<ExternalOutcome> {
    stream.write_all(&HEADER).await?;
    stream.flush().await?;
    let mut header = [0; HEADER.len()];
    stream.read_exact(&mut header).await?;
    if header != HEADER {
        return Err(invalid_data("not a SASL protocol header"));
    }
    let offered: SaslMechanisms = read_frame(stream).await?;
    if !offered.sasl_server_mechanisms.0.contains(&Symbol::from("EXTERNAL")) {
        return Ok(ExternalOutcome::NotOffered);
    }
    let init = SaslInit {
        mechanism: Symbol::from("EXTERNAL"),
        // An empty response means the identity in the certificate; without a response the server would ask for one by
        // a challenge.
        initial_response: Some(Binary::from(Vec::new())),
        hostname: Some(host.to_owned()),
    };
    let body = serde_amqp::to_vec(&init).map_err(invalid_data)?;
    let size = u32::try_from(body.len() + 8).map_err(invalid_data)?;
    stream.write_all(&[&size.to_be_bytes()[..], &[2, SASL_FRAME, 0, 0], &body].concat()).await?;
    stream.flush().await?;
    let outcome: SaslOutcome = read_frame(stream).await?;
    Ok(if outcome.code == SaslCode::Ok { ExternalOutcome::Authenticated } else { ExternalOutcome::Refused })
}

async fn read_frame<Io: AsyncRead + Unpin, T: DeserializeOwned>(stream: &mut Io) -> io::Result<T> {
    let mut head = [0; 8];
    stream.read_exact(&mut head).await?;
    let [s0, s1, s2, s3, doff, kind, _, _] = head;
    let size = u32::from_be_bytes([s0, s1, s2, s3]) as usize;
    if !(8..=MAX_FRAME_SIZE).contains(&size) || doff != 2 || kind != SASL_FRAME {
        return Err(invalid_data("not a SASL frame"));
    }
    let mut body = vec![0; size - 8];
    stream.read_exact(&mut body).await?;
    serde_amqp::from_slice(&body).map_err(invalid_data)
}

fn invalid_data(what: impl ToString) -> io::Error {
    io::Error::new(io::ErrorKind::InvalidData, what.to_string())
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_amqp::primitives::Array;

    fn frame(body: &impl serde::Serialize) -> Vec<u8> {
        let body = serde_amqp::to_vec(body).unwrap();
        [&(body.len() as u32 + 8).to_be_bytes()[..], &[2, 1, 0, 0], &body].concat()
    }

    async fn against(mechanisms: &[&str], code: SaslCode) -> (io::Result<ExternalOutcome>, Vec<u8>) {
        let (mut ours, mut theirs) = tokio::io::duplex(4096);
        let offered: Vec<_> = mechanisms.iter().map(|name| Symbol::from(*name)).collect();
        let offered = SaslMechanisms { sasl_server_mechanisms: Array(offered) };
        let outcome = SaslOutcome { code, additional_data: None };
        theirs.write_all(&[&HEADER[..], &frame(&offered), &frame(&outcome)].concat()).await.unwrap();
        let result = negotiate(&mut ours, "host").await;
        drop(ours);
        let mut said = Vec::new();
        theirs.read_to_end(&mut said).await.unwrap();
        (result, said)
    }

    #[test]
    fn the_certificate_is_all_that_is_said() {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
        runtime.block_on(async {
            let (outcome, said) = against(&["PLAIN", "EXTERNAL"], SaslCode::Ok).await;
            assert_eq!(outcome.unwrap(), ExternalOutcome::Authenticated);
            let init: SaslInit = serde_amqp::from_slice(&said[16..]).unwrap();
            assert_eq!((init.mechanism.0.as_str(), init.hostname.as_deref()), ("EXTERNAL", Some("host")));
            let (outcome, _) = against(&["EXTERNAL"], SaslCode::Auth).await;
            assert_eq!(outcome.unwrap(), ExternalOutcome::Refused);
            let (outcome, _) = against(&["PLAIN"], SaslCode::Ok).await;
            assert_eq!(outcome.unwrap(), ExternalOutcome::NotOffered);
        });
    }
}

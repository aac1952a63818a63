//! The receive task: answers to who asked, effects to their sessions, pushed challenges to the keys, credit to the sender.

use std::sync::Arc;

use memory_transport::{Incoming, WsReader, WsWriter};
use memory_wire::credit::decode_upload_credit;
use memory_wire::did::Did;
use memory_wire::envelope;
use memory_wire::json::{self, JsonLimits};
use memory_wire::message::MAX_EXPANDED_LEN;
use serde_json::Value;
use tokio::sync::{Mutex, mpsc};

use crate::dial::{Read, Write};
use crate::hello::Issued;
use crate::inner::{Delivery, Inner};
use crate::send::Credit;
use crate::session::Effect;
use crate::{ClientError, Closed, Denied};

/// Reads until the connection ends, and says how it did.
pub(crate) async fn run(
    inner: Arc<Inner>,
    mut reader: WsReader<Read>,
    writer: Arc<Mutex<WsWriter<Write>>>,
    credit: Option<Arc<Credit>>,
    pushed: mpsc::Sender<(Did, Issued)>,
) -> Closed {
    let outcome = forward(&inner, &mut reader, &writer, credit.as_deref(), &pushed).await;
    match outcome {
        Ok(closed) => {
            let code = closed.code.unwrap_or(1000);
            let _ = writer.lock().await.close(code, "").await;
            closed
        }
        Err(error) => {
            let _ = writer.lock().await.close(1002, "").await;
            Closed {
                code: None,
                reason: error.to_string(),
            }
        }
    }
}

async fn forward(
    inner: &Inner,
    reader: &mut WsReader<Read>,
    writer: &Mutex<WsWriter<Write>>,
    credit: Option<&Credit>,
    pushed: &mpsc::Sender<(Did, Issued)>,
) -> Result<Closed, ClientError> {
    loop {
        match reader.next().await {
            Ok(Incoming::Text) => {
                let len = reader.buffer().len();
                let value = parse(inner, reader.buffer().payload())?;
                dispatch(inner, value, len, pushed).await?;
            }
            Ok(Incoming::Binary) => {
                let payload = reader.buffer().payload();
                if payload.starts_with(b"mcmp") {
                    let opened = envelope::decode(payload, MAX_EXPANDED_LEN)
                        .map_err(|_| ClientError::Protocol("compressed message"))?;
                    let value = parse(inner, &opened.text)?;
                    dispatch(inner, value, opened.text.len(), pushed).await?;
                } else {
                    let credit = credit.ok_or(ClientError::Protocol("credit without uploads"))?;
                    credit.add(
                        decode_upload_credit(payload)
                            .map_err(|_| ClientError::Protocol("credit"))?,
                    )?;
                }
            }
            Ok(Incoming::Ping) => {
                let payload = reader.control().to_vec();
                let _ = writer.lock().await.pong(&payload).await;
            }
            Ok(Incoming::Pong) => {}
            Ok(Incoming::Close { code, reason }) => return Ok(Closed { code, reason }),
            Err(error) => {
                return Ok(Closed {
                    code: None,
                    reason: error.to_string(),
                });
            }
        }
    }
}

fn parse(inner: &Inner, text: &[u8]) -> Result<Value, ClientError> {
    let body = text
        .strip_prefix(b"fvj1:")
        .ok_or(ClientError::Protocol("message prefix"))?;
    let limits = JsonLimits {
        max_slots: inner.hello.frame_slots,
        ..JsonLimits::default()
    };
    json::parse(body, &limits).map_err(|_| ClientError::Protocol("message"))
}

async fn dispatch(
    inner: &Inner,
    mut value: Value,
    len: usize,
    pushed: &mpsc::Sender<(Did, Issued)>,
) -> Result<(), ClientError> {
    let text =
        |value: &Value, name: &str| value.get(name).and_then(Value::as_str).map(str::to_owned);
    let kind = text(&value, "type").ok_or(ClientError::Protocol("message type"))?;
    match kind.as_str() {
        "response" => {
            let id = text(&value, "requestId").ok_or(ClientError::Protocol("response"))?;
            let outcome = match (
                value.get_mut("ok").map(Value::take),
                value.get_mut("error").map(Value::take),
            ) {
                (Some(ok), None) => Ok(ok),
                (None, Some(error)) => Err(Denied::from_value(error)),
                _ => return Err(ClientError::Protocol("response")),
            };
            // An unknown id is an answer to a call that was dropped.
            if let Some((stream, answer)) = inner.answer(&id, outcome, len) {
                let _ = stream.send(answer).await;
            }
        }
        "memory.compression" => {
            let id =
                text(&value, "requestId").ok_or(ClientError::Protocol("memory.compression"))?;
            let _ = inner.answer(&id, Ok(value), len);
        }
        "connection/challenge" => {
            let principal = text(&value, "principal").and_then(|did| Did::parse(&did).ok());
            let principal = principal.ok_or(ClientError::Protocol("connection/challenge"))?;
            let issued = Issued::from_value(value.get("challenge").unwrap_or(&Value::Null))?;
            // Full only if the keys cannot keep up with a router that floods them: the later ones are not needed.
            let _ = pushed.try_send((principal, issued));
        }
        "router.credit" => return Err(ClientError::Protocol("textual credit")),
        _ => {
            let (Some(space), Some(session)) = (text(&value, "space"), text(&value, "sessionId"))
            else {
                return Ok(());
            };
            let Some(effects) = inner.deliveries(&space, &session) else {
                return Ok(());
            };
            let effect = match kind.as_str() {
                "session/effect" => {
                    Effect::Sync(value.get_mut("effect").map(Value::take).unwrap_or_default())
                }
                "session/revoked" => {
                    inner.forget_session(&space, &session);
                    Effect::Revoked(text(&value, "reason").unwrap_or_default())
                }
                _ => Effect::Other(value),
            };
            let _ = effects.send(Delivery::Effect(effect, len)).await;
        }
    }
    Ok(())
}

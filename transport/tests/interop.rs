//! Against a WebSocket library we did not write, in both roles, over plain TCP on loopback.

#![allow(clippy::unwrap_used, clippy::panic)] // a failed expectation is the verdict

mod common;

use std::net::TcpStream;

use memory_transport::{Buffer, Incoming, ReadLimits, Target, WebSocket, upgrade};
use memory_wire::frame::Opcode;
use memory_wire::upgrade::{LINK_PATH, PUBLIC_PATH, UpgradePolicy};
use tokio::io::{AsyncRead, AsyncWrite};
use tungstenite::protocol::frame::coding::CloseCode;
use tungstenite::protocol::{CloseFrame, Message};

use common::{deadline, tcp_pair};

const LIMITS: ReadLimits = ReadLimits::new(1 << 20);
const SIZES: [usize; 9] = [0, 1, 125, 126, 127, 32_773, 65_535, 65_536, 128 * 1024];

/// Sends back every data message and answers pings and the close, until the close.
async fn echo<S: AsyncRead + AsyncWrite + Unpin>(socket: WebSocket<S>) -> Option<u16> {
    let WebSocket {
        mut reader,
        mut writer,
    } = socket;
    let mut buffer = Buffer::new();
    loop {
        let opcode = match reader.next().await.unwrap() {
            Incoming::Text => Opcode::Text,
            Incoming::Binary => Opcode::Binary,
            Incoming::Ping => {
                writer.pong(reader.control()).await.unwrap();
                continue;
            }
            Incoming::Pong => continue,
            Incoming::Close { code, .. } => {
                writer.close(code.unwrap_or(1000), "").await.unwrap();
                writer.shutdown().await.unwrap();
                return code;
            }
        };
        reader.swap_buffer(&mut buffer);
        writer.frame(opcode, true, &mut buffer).await.unwrap();
    }
}

/// The other library's side of `echo`.
fn exercise(mut socket: tungstenite::WebSocket<TcpStream>) {
    for size in SIZES {
        let binary = Message::binary((0..size).map(|index| index as u8).collect::<Vec<_>>());
        let text = Message::text("\u{fc}".repeat(size / 2));
        for message in [binary, text] {
            socket.send(message.clone()).unwrap();
            assert!(socket.read().unwrap() == message, "size {size}");
        }
    }
    socket
        .send(Message::Ping(b"payload".to_vec().into()))
        .unwrap();
    assert_eq!(
        socket.read().unwrap(),
        Message::Pong(b"payload".to_vec().into())
    );
    socket
        .close(Some(CloseFrame {
            code: CloseCode::Away,
            reason: "bye".into(),
        }))
        .unwrap();
    let close = socket.read().unwrap();
    assert!(
        matches!(
            close,
            Message::Close(Some(CloseFrame {
                code: CloseCode::Away,
                ..
            }))
        ),
        "{close:?}"
    );
    assert!(matches!(
        socket.read(),
        Err(tungstenite::Error::ConnectionClosed)
    ));
}

fn blocking(stream: tokio::net::TcpStream) -> TcpStream {
    let stream = stream.into_std().unwrap();
    stream.set_nonblocking(false).unwrap();
    stream
}

#[tokio::test]
async fn serves_a_foreign_client() {
    let (client, server) = tcp_pair().await;
    let client = blocking(client);
    let other = std::thread::spawn(move || {
        let url = format!("ws://memory.example{PUBLIC_PATH}");
        let (socket, response) = tungstenite::client(url, client).unwrap();
        assert_eq!(response.status(), 101);
        exercise(socket);
    });
    let policy = UpgradePolicy::Public {
        host: "memory.example".to_owned(),
        origins: Vec::new(),
        require_origin: false,
    };
    let (socket, _) = upgrade::accept(server, &policy, LIMITS, deadline())
        .await
        .unwrap();
    assert_eq!(echo(socket).await, Some(1001));
    other.join().unwrap();
}

#[tokio::test]
async fn uses_a_foreign_server() {
    let (client, server) = tcp_pair().await;
    let server = blocking(server);
    let other = std::thread::spawn(move || exercise(tungstenite::accept(server).unwrap()));
    let target = Target {
        host: "toolshed.test",
        path: LINK_PATH,
        origin: None,
    };
    let socket = upgrade::connect(client, target, LIMITS, deadline())
        .await
        .unwrap();
    assert_eq!(echo(socket).await, Some(1001));
    other.join().unwrap();
}

#[tokio::test]
async fn reads_a_foreign_client_s_fragments() {
    use tungstenite::protocol::frame::Frame;
    use tungstenite::protocol::frame::coding::{Data, OpCode};
    let (client, server) = tcp_pair().await;
    let client = blocking(client);
    let other = std::thread::spawn(move || {
        let (mut socket, _) =
            tungstenite::client(format!("ws://toolshed.test{LINK_PATH}"), client).unwrap();
        for (opcode, fin, payload) in [
            (Data::Text, false, "one "),
            (Data::Continue, false, "two "),
            (Data::Continue, true, "three"),
        ] {
            socket
                .send(Message::Frame(Frame::message(
                    payload.as_bytes().to_vec(),
                    OpCode::Data(opcode),
                    fin,
                )))
                .unwrap();
            socket.send(Message::Ping(Vec::new().into())).unwrap();
        }
        let mut pongs = 0;
        while pongs < 3 {
            pongs += usize::from(socket.read().unwrap().is_pong());
        }
    });
    let (socket, _) = upgrade::accept(server, &UpgradePolicy::Private, LIMITS, deadline())
        .await
        .unwrap();
    let WebSocket {
        mut reader,
        mut writer,
    } = socket;
    let mut pings = 0;
    let mut texts = Vec::new();
    while pings < 3 {
        match reader.next().await.unwrap() {
            Incoming::Ping => {
                pings += 1;
                writer.pong(reader.control()).await.unwrap();
            }
            Incoming::Text => {
                texts.push(String::from_utf8(reader.buffer().payload().to_vec()).unwrap())
            }
            other => panic!("{other:?}"),
        }
    }
    assert_eq!(texts, ["one two three"]);
    other.join().unwrap();
}

//! Channels: end of file, full channels, deadlines, cancellation, and what is not a channel.

// The lint lets test functions alone, but not the helpers around them.
#![allow(clippy::expect_used)]

use std::cell::Cell;
use std::net::{TcpListener, UdpSocket};
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::net::{UnixDatagram, UnixStream};
use std::rc::Rc;
use std::time::{Duration, Instant};

use memory_ipc::packets::{KeyAgentToWorker, WorkerToKeyAgent};
use memory_ipc::{BlockingChannel, Channel, ChannelError, MAX_PACKET_LEN, take_stdin};
use rustix::fs::{OFlags, fcntl_getfl};
use rustix::io::{FdFlags, fcntl_getfd};
use rustix::net::{AddressFamily, SocketFlags, SocketType, socket, socketpair};

mod common;
use common::{again, in_child, open_descriptors};

#[tokio::test]
async fn packets_keep_their_order_and_borders() {
    let (near, far) = channels();
    let packets: Vec<Vec<u8>> = [1, 2, 100, 4096, MAX_PACKET_LEN]
        .map(|length| vec![length.to_be_bytes()[7]; length])
        .to_vec();
    for packet in &packets {
        near.send(packet, &[]).await.expect("send");
    }
    let mut received = Vec::new();
    for packet in &packets {
        far.recv(&mut received)
            .await
            .expect("recv")
            .expect("packet");
        assert_eq!(&received, packet);
    }
}

#[tokio::test]
async fn packets_that_no_peer_would_take_are_not_sent() {
    let (near, _far) = channels();
    let long = vec![0; MAX_PACKET_LEN + 1];
    assert!(matches!(
        near.send(b"", &[]).await,
        Err(ChannelError::EmptyPacket)
    ));
    assert!(matches!(
        near.send(&long, &[]).await,
        Err(ChannelError::PacketTooLong { length: 8193 })
    ));
    assert!(matches!(
        near.try_send(&long, &[]),
        Err(ChannelError::PacketTooLong { length: 8193 })
    ));
}

#[tokio::test]
async fn the_end_of_the_peer_is_end_of_file() {
    let (near, far) = channels();
    near.send(b"last", &[]).await.expect("send");
    drop(near);
    let mut packet = Vec::new();
    assert!(far.recv(&mut packet).await.expect("recv").is_some());
    assert_eq!(packet, b"last");
    for _ in 0..2 {
        assert!(far.recv(&mut packet).await.expect("recv").is_none());
        assert!(packet.is_empty());
    }
    assert!(matches!(
        far.send(b"x", &[]).await,
        Err(ChannelError::Closed)
    ));
    assert!(matches!(far.try_send(b"x", &[]), Err(ChannelError::Closed)));
}

/// The kernel reports such an end as a reset, before the packets that were sent.
#[tokio::test]
async fn a_peer_that_ends_without_reading_is_heard_to_its_end() {
    let (near, far) = channels();
    far.send(b"never read", &[]).await.expect("send");
    near.send(b"one", &[]).await.expect("send");
    near.send(b"two", &[]).await.expect("send");
    drop(near);
    let mut packet = Vec::new();
    for expected in [b"one", b"two"] {
        assert!(far.recv(&mut packet).await.expect("recv").is_some());
        assert_eq!(packet, expected);
    }
    assert!(far.recv(&mut packet).await.expect("recv").is_none());
}

#[tokio::test]
async fn the_end_of_the_peer_wakes_a_waiting_receiver() {
    let (near, far) = channels();
    let mut packet = Vec::new();
    let (received, ()) = tokio::join!(far.recv(&mut packet), async { drop(near) });
    assert!(received.expect("recv").is_none());
}

#[tokio::test]
async fn a_full_channel_is_an_error_for_who_must_not_wait() {
    let (near, far) = channels();
    let sent = fill(&near);
    assert!(sent > 10);
    let mut packet = Vec::new();
    for _ in 0..sent {
        far.recv(&mut packet).await.expect("recv").expect("packet");
    }
    near.try_send(b"room again", &[]).expect("send");
}

#[tokio::test]
async fn a_full_channel_makes_a_sender_wait_until_there_is_room() {
    let (near, far) = channels();
    let sent = fill(&near);
    let drain = async {
        let mut packet = Vec::new();
        for _ in 0..=sent {
            far.recv(&mut packet).await.expect("recv").expect("packet");
        }
        packet
    };
    let (result, last) = tokio::join!(biased; near.send(b"last", &[]), drain);
    result.expect("send");
    assert_eq!(last, b"last");
}

#[tokio::test]
async fn a_full_channel_lets_a_waiting_sender_see_the_end_of_the_peer() {
    let (near, far) = channels();
    fill(&near);
    let (result, ()) = tokio::join!(biased; near.send(b"last", &[]), async { drop(far) });
    assert!(matches!(result, Err(ChannelError::Closed)));
}

#[tokio::test]
async fn a_cancelled_receive_loses_nothing() {
    let (near, far) = channels();
    let mut packet = Vec::new();
    for round in 0..20_u8 {
        tokio::select! {
            biased;
            _ = far.recv(&mut packet) => panic!("nothing was sent"),
            () = tokio::task::yield_now() => {}
        }
        near.send(&[round], &[]).await.expect("send");
        far.recv(&mut packet).await.expect("recv").expect("packet");
        assert_eq!(packet, [round]);
    }
}

#[tokio::test]
async fn a_peer_that_floods_does_not_keep_others_from_running() {
    tokio::task::LocalSet::new()
        .run_until(async {
            let (near, far) = channels();
            let mut sent = 0;
            while near.try_send(b"flood", &[]).is_ok() {
                sent += 1;
            }
            assert!(sent > 200, "{sent} packets are too few for this test");
            drop(near);
            // From now on the runtime knows that there is something to read, so that the task below has no need to wait.
            far.recv(&mut Vec::new())
                .await
                .expect("recv")
                .expect("packet");
            let received = Rc::new(Cell::new(0));
            let count = Rc::clone(&received);
            let flooded = tokio::task::spawn_local(async move {
                let mut packet = Vec::new();
                while far.recv(&mut packet).await.expect("recv").is_some() {
                    count.set(count.get() + 1);
                }
            });
            let other = tokio::task::spawn_local(async move { received.get() });
            let before_other = other.await.expect("task");
            assert!(
                (1..sent - 1).contains(&before_other),
                "{before_other} of {sent}"
            );
            flooded.await.expect("task");
        })
        .await;
}

#[tokio::test]
async fn peers_are_the_process_that_made_the_pair() {
    let (near, _far) = channels();
    let peer = near.peer().expect("peer");
    assert_eq!(peer.pid, std::process::id());
    assert_eq!(peer.uid, rustix::process::geteuid().as_raw());
    assert_eq!(peer.gid, rustix::process::getegid().as_raw());
    let blocking = BlockingChannel::from_fd(near.into_fd()).expect("channel");
    assert_eq!(blocking.peer().expect("peer"), peer);
}

#[tokio::test]
async fn what_is_not_a_channel_is_refused() {
    let (stream, _other_stream) = UnixStream::pair().expect("pair");
    let (datagram, _other_datagram) = UnixDatagram::pair().expect("pair");
    let lonely = socket(AddressFamily::UNIX, SocketType::SEQPACKET, None).expect("socket");
    let listening = {
        let directory = tempfile::tempdir().expect("directory");
        let path = directory.path().join("socket");
        let socket = socket(AddressFamily::UNIX, SocketType::SEQPACKET, None).expect("socket");
        let address = rustix::net::SocketAddrUnix::new(&path).expect("address");
        rustix::net::bind(&socket, &address).expect("bind");
        rustix::net::listen(&socket, 1).expect("listen");
        socket
    };
    let others: Vec<OwnedFd> = vec![
        stream.into(),
        datagram.into(),
        lonely,
        listening,
        TcpListener::bind("127.0.0.1:0").expect("bind").into(),
        UdpSocket::bind("127.0.0.1:0").expect("bind").into(),
        std::fs::File::open("/dev/null").expect("open").into(),
    ];
    for other in others {
        let again = other.try_clone().expect("dup");
        assert!(matches!(
            Channel::from_fd(other),
            Err(ChannelError::NotAChannel)
        ));
        assert!(matches!(
            BlockingChannel::from_fd(again),
            Err(ChannelError::NotAChannel)
        ));
    }
}

#[tokio::test]
async fn a_channel_is_made_non_blocking_and_close_on_exec() {
    let pair = |flags| socketpair(AddressFamily::UNIX, SocketType::SEQPACKET, flags, None);
    let (near, far) = pair(SocketFlags::empty()).expect("pair");
    let near = Channel::from_fd(near).expect("channel");
    let far = BlockingChannel::from_fd(far).expect("channel");
    let (one, two) = Channel::pair().expect("pair");
    for descriptor in [near.as_fd(), far.as_fd(), one.as_fd(), two.as_fd()] {
        assert!(
            fcntl_getfd(descriptor)
                .expect("fcntl")
                .contains(FdFlags::CLOEXEC)
        );
        assert!(
            fcntl_getfl(descriptor)
                .expect("fcntl")
                .contains(OFlags::NONBLOCK)
        );
    }
}

#[tokio::test]
async fn a_channel_whose_peer_is_gone_already_is_one_all_the_same() {
    let (near, far) = Channel::pair().expect("pair");
    let near = Channel::from_fd(near).expect("channel");
    near.send(b"left behind", &[]).await.expect("send");
    drop(near);
    let far = Channel::from_fd(far).expect("channel");
    let mut packet = Vec::new();
    assert!(far.recv(&mut packet).await.expect("recv").is_some());
    assert!(far.recv(&mut packet).await.expect("recv").is_none());
}

#[test]
fn outside_of_a_runtime_there_is_an_error_and_no_panic() {
    let (near, _far) = Channel::pair().expect("pair");
    assert!(matches!(
        Channel::from_fd(near),
        Err(ChannelError::Setup(_))
    ));
}

#[test]
fn a_blocking_channel_asks_and_is_answered() {
    let (worker, agent) = blocking_channels();
    let agent = std::thread::spawn(move || {
        let received = agent.recv_packet::<WorkerToKeyAgent>(soon()).expect("recv");
        let (
            WorkerToKeyAgent::Sign {
                sequence, input, ..
            },
            _,
        ) = received.expect("packet");
        let signed = KeyAgentToWorker::Signed {
            sequence,
            status: 0,
            signature: input,
        };
        agent.send_packet(&signed, &[], soon()).expect("send");
    });
    let sign = WorkerToKeyAgent::Sign {
        sequence: 5,
        scheme: 0x0403,
        input: b"input".to_vec(),
    };
    worker.send_packet(&sign, &[], soon()).expect("send");
    let (answer, _) = worker
        .recv_packet::<KeyAgentToWorker>(soon())
        .expect("recv")
        .expect("packet");
    let expected = KeyAgentToWorker::Signed {
        sequence: 5,
        status: 0,
        signature: b"input".to_vec(),
    };
    assert!(answer == expected);
    agent.join().expect("thread");
    let end = worker
        .recv_packet::<KeyAgentToWorker>(soon())
        .expect("recv");
    assert!(end.is_none());
}

#[test]
fn a_blocking_channel_waits_no_longer_than_its_deadline() {
    let (near, _far) = blocking_channels();
    let begin = Instant::now();
    let deadline = begin + Duration::from_millis(30);
    let mut packet = Vec::new();
    let result = near.recv(&mut packet, deadline);
    assert!(matches!(result, Err(ChannelError::Deadline)));
    assert!(Instant::now() >= deadline);
    // A deadline in the past is no wait at all, but what is there is still taken.
    let result = near.recv(&mut packet, begin);
    assert!(matches!(result, Err(ChannelError::Deadline)));
    let sent = loop {
        if let Err(error) = near.send(&[0; 1000], &[], begin) {
            break error;
        }
    };
    assert!(matches!(sent, ChannelError::Deadline));
    let result = near.send(&[0; 1000], &[], Instant::now() + Duration::from_millis(30));
    assert!(matches!(result, Err(ChannelError::Deadline)));
}

#[test]
fn a_blocking_channel_takes_what_is_there_after_its_deadline() {
    let (near, far) = blocking_channels();
    let past = Instant::now();
    far.send(b"there", &[], past).expect("send");
    let mut packet = Vec::new();
    assert!(near.recv(&mut packet, past).expect("recv").is_some());
    drop(far);
    assert!(near.recv(&mut packet, past).expect("recv").is_none());
    assert!(matches!(
        near.send(b"x", &[], past),
        Err(ChannelError::Closed)
    ));
}

#[test]
fn a_channel_is_handed_over_as_standard_input() {
    const CHILD: &str = "MEMORY_IPC_STDIN";
    let name = "a_channel_is_handed_over_as_standard_input";
    if std::env::var_os(CHILD).is_some() {
        let channel = BlockingChannel::from_fd(take_stdin().expect("stdin")).expect("channel");
        channel.send(b"hello", &[], soon()).expect("send");
        drop(channel);
        let left = open_descriptors();
        assert!(!left.iter().any(|(_, kind)| kind.starts_with("socket:")));
        assert_eq!(
            left.first().map(|(_, kind)| kind.as_str()),
            Some("/dev/null")
        );
        return;
    }
    let (near, far) = Channel::pair().expect("pair");
    let near = BlockingChannel::from_fd(near).expect("channel");
    let output = again(name)
        .env(CHILD, "1")
        .stdin(far)
        .output()
        .expect("run");
    assert!(output.status.success(), "{output:?}");
    let mut packet = Vec::new();
    assert!(near.recv(&mut packet, soon()).expect("recv").is_some());
    assert_eq!(packet, b"hello");
    assert!(near.recv(&mut packet, soon()).expect("recv").is_none());
}

#[test]
fn a_dropped_channel_leaves_no_descriptor() {
    in_child("a_dropped_channel_leaves_no_descriptor", || {
        let runtime = tokio::runtime::Builder::new_current_thread()
            .enable_all()
            .build()
            .expect("runtime");
        runtime.block_on(async {
            let before = open_descriptors();
            for _ in 0..50 {
                let (near, far) = channels();
                near.send(b"x", &[far.as_fd()]).await.expect("send");
                drop(BlockingChannel::from_fd(far.into_fd()));
                let file = std::fs::File::open("/dev/null").expect("open");
                assert!(Channel::from_fd(file.into()).is_err());
            }
            assert_eq!(open_descriptors(), before);
        });
    });
}

/// Sends until the channel is full, and tells how many packets that took.
fn fill(channel: &Channel) -> usize {
    let mut sent = 0;
    loop {
        let result = channel.try_send(&[0; 4096], &[]);
        if result.is_err() {
            assert!(matches!(result, Err(ChannelError::WouldBlock)));
            return sent;
        }
        sent += 1;
    }
}

fn channels() -> (Channel, Channel) {
    let (near, far) = Channel::pair().expect("pair");
    (
        Channel::from_fd(near).expect("channel"),
        Channel::from_fd(far).expect("channel"),
    )
}

fn blocking_channels() -> (BlockingChannel, BlockingChannel) {
    let (near, far) = Channel::pair().expect("pair");
    (
        BlockingChannel::from_fd(near).expect("channel"),
        BlockingChannel::from_fd(far).expect("channel"),
    )
}

/// Later than anything that does not fail takes.
fn soon() -> Instant {
    Instant::now() + Duration::from_secs(20)
}

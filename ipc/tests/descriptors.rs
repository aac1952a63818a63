//! Passing descriptors: real socket pairs, real files, and every way in which it goes wrong.

// The lint lets test functions alone, but not the helpers around them.
#![allow(clippy::expect_used)]

use std::fs::File;
use std::io::{Read, Seek, SeekFrom, Write};
use std::os::fd::{AsFd, OwnedFd};

use memory_ipc::packets::{SpawnerToKeyAgent, SpawnerToLinkAgent, SpawnerToWorker};
use memory_ipc::{Channel, ChannelError, MAX_DESCRIPTORS, MAX_PACKET_LEN, Packet, counters};
use memory_wire::ids::ConnectionId;
use rustix::io::{FdFlags, fcntl_getfd};
use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};

mod common;
mod witness;
use common::{in_child, open_descriptors};
use witness::{Witness, send_raw};

#[tokio::test]
async fn files_arrive_in_order_and_close_on_exec() {
    let (near, far) = channels();
    for count in 0..=MAX_DESCRIPTORS {
        let files: Vec<File> = (0..count).map(file_saying).collect();
        let borrowed: Vec<_> = files.iter().map(AsFd::as_fd).collect();
        near.send(b"files", &borrowed).await.expect("send");
        drop(files);
        let mut packet = Vec::new();
        let received = far.recv(&mut packet).await.expect("recv").expect("packet");
        assert_eq!(packet, b"files");
        assert_eq!(received.descriptors.len(), count);
        for (position, descriptor) in received.descriptors.into_iter().enumerate() {
            let flags = fcntl_getfd(&descriptor).expect("fcntl");
            assert!(flags.contains(FdFlags::CLOEXEC));
            assert_eq!(read_from_start(descriptor), position.to_string());
        }
    }
}

#[tokio::test]
async fn a_packet_comes_with_exactly_the_descriptors_of_its_tag() {
    let (near, far) = channels();
    let files: Vec<File> = (0..2).map(file_saying).collect();
    let borrowed: Vec<_> = files.iter().map(AsFd::as_fd).collect();
    near.send_packet(&register_two(), &borrowed)
        .await
        .expect("send");
    let (packet, descriptors) = far
        .recv_packet::<SpawnerToLinkAgent>()
        .await
        .expect("recv")
        .expect("packet");
    assert!(packet == register_two());
    let texts: Vec<String> = descriptors.into_iter().map(read_from_start).collect();
    assert_eq!(texts, ["0", "1"]);
}

#[tokio::test]
async fn another_number_of_descriptors_is_not_sent() {
    let (near, _far) = channels();
    let witnesses = Witness::some(3);
    let borrowed = Witness::borrowed(&witnesses);
    for count in [0, 1, 3] {
        let result = near.send_packet(&register_two(), &borrowed[..count]).await;
        assert!(matches!(
            result,
            Err(ChannelError::DescriptorCount { expected: 2, received }) if received == count
        ));
        let result = near.try_send_packet(&register_two(), &borrowed[..count]);
        assert!(matches!(result, Err(ChannelError::DescriptorCount { .. })));
    }
    let file = file_saying(0);
    let too_many = vec![file.as_fd(); MAX_DESCRIPTORS + 1];
    assert!(matches!(
        near.send(b"files", &too_many).await,
        Err(ChannelError::TooManyDescriptors { count: 9 })
    ));
}

#[tokio::test]
async fn surplus_and_missing_descriptors_are_closed_and_reported() {
    let before = counters().descriptor_counts_wrong;
    let register = register_two().encode().expect("encode");
    for count in [0, 1, 3, 8] {
        let (near, far) = channels();
        let witnesses = Witness::some(count);
        let borrowed = Witness::borrowed(&witnesses);
        near.send(&register, &borrowed).await.expect("send");
        let result = far.recv_packet::<SpawnerToLinkAgent>().await;
        let error = result.expect_err("refused");
        assert!(matches!(
            error,
            ChannelError::DescriptorCount { expected: 2, received } if received == count
        ));
        assert_eq!(error.reason(), "channel-descriptor-count");
        assert!(error.is_violation());
        witnesses.into_iter().for_each(Witness::assert_released);
    }
    assert!(counters().descriptor_counts_wrong >= before + 4);
}

#[tokio::test]
async fn a_descriptor_where_none_belongs_is_closed_and_reported() {
    let (near, far) = channels();
    let drain = SpawnerToWorker::Drain.encode().expect("encode");
    let witness = Witness::some(1);
    near.send(&drain, &Witness::borrowed(&witness))
        .await
        .expect("send");
    assert!(matches!(
        far.recv_packet::<SpawnerToWorker>().await,
        Err(ChannelError::DescriptorCount {
            expected: 0,
            received: 1
        })
    ));
    witness.into_iter().for_each(Witness::assert_released);
}

#[tokio::test]
async fn descriptors_of_a_malformed_packet_are_closed() {
    let before = counters().packets_malformed;
    let (near, far) = channels();
    let witness = Witness::some(1);
    let borrowed = Witness::borrowed(&witness);
    near.send(b"what is this", &borrowed).await.expect("send");
    assert!(matches!(
        far.recv_packet::<SpawnerToKeyAgent>().await,
        Err(ChannelError::Packet(_))
    ));
    witness.into_iter().for_each(Witness::assert_released);
    assert!(counters().packets_malformed > before);
}

#[tokio::test]
async fn more_descriptors_than_fit_are_noticed_and_closed() {
    for count in [MAX_DESCRIPTORS + 1, MAX_DESCRIPTORS + 2, 20] {
        let before = counters().descriptors_lost;
        let (near, far) = channels();
        let witnesses = Witness::some(count);
        send_raw(near.as_fd(), b"files", &Witness::borrowed(&witnesses));
        near.send(b"next", &[]).await.expect("send");
        let mut packet = Vec::new();
        let error = far.recv(&mut packet).await.expect_err("refused");
        assert!(matches!(error, ChannelError::DescriptorsLost));
        assert_eq!(error.reason(), "channel-descriptors-lost");
        // What they were for is still to be answered.
        assert_eq!(packet, b"files");
        witnesses.into_iter().for_each(Witness::assert_released);
        assert!(counters().descriptors_lost > before);
        // The channel itself is in order.
        far.recv(&mut packet).await.expect("recv").expect("packet");
        assert_eq!(packet, b"next");
    }
}

#[tokio::test]
async fn a_packet_over_the_limit_is_dropped_with_its_descriptors() {
    let before = counters().packets_too_long;
    let (near, far) = channels();
    let witnesses = Witness::some(3);
    let long = vec![1; MAX_PACKET_LEN + 1];
    send_raw(near.as_fd(), &long, &Witness::borrowed(&witnesses));
    near.send(&long[1..], &[]).await.expect("send");
    let mut packet = Vec::new();
    assert!(matches!(
        far.recv(&mut packet).await,
        Err(ChannelError::PacketTooLong { length }) if length == MAX_PACKET_LEN + 1
    ));
    assert!(packet.capacity() <= MAX_PACKET_LEN);
    witnesses.into_iter().for_each(Witness::assert_released);
    assert!(counters().packets_too_long > before);
    // One of just the limit passes.
    far.recv(&mut packet).await.expect("recv").expect("packet");
    assert_eq!(packet.len(), MAX_PACKET_LEN);
}

#[tokio::test]
async fn descriptors_without_a_byte_are_closed_and_reported() {
    let (near, far) = channels();
    let witnesses = Witness::some(2);
    send_raw(near.as_fd(), b"", &Witness::borrowed(&witnesses));
    assert!(matches!(
        far.recv(&mut Vec::new()).await,
        Err(ChannelError::EmptyPacket)
    ));
    witnesses.into_iter().for_each(Witness::assert_released);
}

#[tokio::test]
async fn descriptors_never_received_are_closed_with_the_channel() {
    let (near, far) = channels();
    let witnesses = Witness::some(3);
    let borrowed = Witness::borrowed(&witnesses);
    near.send(b"files", &borrowed).await.expect("send");
    drop(far);
    witnesses.into_iter().for_each(Witness::assert_released);
}

#[test]
fn no_descriptor_is_leaked_on_any_path() {
    in_child("no_descriptor_is_leaked_on_any_path", || {
        runtime().block_on(async {
            let before = open_descriptors();
            for _ in 0..50 {
                let (near, far) = channels();
                let file = file_saying(0);
                let mut packet = Vec::new();
                for count in [0, 1, 3, MAX_DESCRIPTORS, MAX_DESCRIPTORS + 1, 100] {
                    send_raw(near.as_fd(), b"files", &vec![file.as_fd(); count]);
                    let received = far.recv(&mut packet).await;
                    assert_eq!(received.is_ok(), count <= MAX_DESCRIPTORS);
                    send_raw(near.as_fd(), b"reg1??????????", &vec![file.as_fd(); count]);
                    let received = far.recv_packet::<SpawnerToLinkAgent>().await;
                    assert!(received.is_err());
                }
                send_raw(near.as_fd(), &[0; 9000], &[file.as_fd(); 5]);
                assert!(far.recv(&mut packet).await.is_err());
            }
            assert_eq!(open_descriptors(), before);
        });
    });
}

#[test]
fn descriptors_lost_at_the_limit_of_the_process_are_noticed() {
    in_child(
        "descriptors_lost_at_the_limit_of_the_process_are_noticed",
        || {
            runtime().block_on(async {
                let (near, far) = channels();
                let limit = getrlimit(Resource::Nofile);
                let small = Rlimit {
                    current: Some(64),
                    maximum: limit.maximum,
                };
                setrlimit(Resource::Nofile, small).expect("setrlimit");
                let mut packet = Vec::new();
                for room in 0..4 {
                    let lost = counters().descriptors_lost;
                    let sent = file_saying(7);
                    near.send(b"files", &[sent.as_fd(); 3]).await.expect("send");
                    near.send(b"next", &[]).await.expect("send");
                    let mut filling = fill();
                    filling.truncate(filling.len() - room);
                    let result = far.recv(&mut packet).await;
                    // Everything that did arrive has been closed again: as many more as before can be opened.
                    if room < 3 {
                        assert!(matches!(result, Err(ChannelError::DescriptorsLost)));
                        assert_eq!(counters().descriptors_lost, lost + 1);
                        assert_eq!(fill().len(), room);
                    } else {
                        assert_eq!(result.expect("recv").expect("packet").descriptors.len(), 3);
                    }
                    drop(filling);
                    // A packet without descriptors needs none.
                    far.recv(&mut packet).await.expect("recv").expect("packet");
                    assert_eq!(packet, b"next");
                }
                setrlimit(Resource::Nofile, limit).expect("setrlimit");
            });
        },
    );
}

/// Opens files until no more can be.
fn fill() -> Vec<File> {
    let mut files = Vec::new();
    loop {
        match File::open("/dev/null") {
            Ok(file) => files.push(file),
            Err(error) => {
                let errno = rustix::io::Errno::from_io_error(&error);
                assert_eq!(errno, Some(rustix::io::Errno::MFILE));
                return files;
            }
        }
    }
}

fn channels() -> (Channel, Channel) {
    let (near, far) = Channel::pair().expect("pair");
    (
        Channel::from_fd(near).expect("channel"),
        Channel::from_fd(far).expect("channel"),
    )
}

fn runtime() -> tokio::runtime::Runtime {
    tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
        .expect("runtime")
}

fn register_two() -> SpawnerToLinkAgent {
    SpawnerToLinkAgent::Register {
        connection: ConnectionId::from([3; 10]),
    }
}

fn file_saying(number: usize) -> File {
    let mut file = tempfile::tempfile().expect("file");
    write!(file, "{number}").expect("write");
    file
}

fn read_from_start(descriptor: OwnedFd) -> String {
    let mut file = File::from(descriptor);
    file.seek(SeekFrom::Start(0)).expect("seek");
    let mut text = String::new();
    file.read_to_string(&mut text).expect("read");
    text
}

//! Conservation of credit: over any interleaving of uploads, refusals, session ends and stalls, all of it comes back in both
//! directions, the sender never overdraws, and the receiver notices any overdraft.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

use std::collections::VecDeque;

use memory_wire::credit::{
    CreditFault, MAX_UPLOAD_WINDOW, MIN_UPLOAD_WINDOW, REQUEST_WINDOW, RequestReceiver,
    RequestSender, UploadReceiver, UploadSender, decode_request_credit, decode_upload_credit,
    encode_request_credit, encode_upload_credit,
};
use memory_wire::stream::MAX_STREAM_RECORD_LEN;
use proptest::prelude::*;

/// What happens next between client and router. Each side only ever acts on what has reached it.
#[derive(Clone, Copy, Debug)]
enum UploadEvent {
    /// The client sends a record of this length, if its credit covers it.
    Send(usize),
    /// The router reads one record. Without `accept` it holds on to it: a stalled toolshed, a control message in assembly.
    Read { accept: bool },
    /// The router lets go of one record it held: forwarded, refused, or its session ended. All are the same to credit.
    LetGo,
    /// The router gives credit back, all of it when it has nothing more to read.
    GiveBack { flush: bool },
    /// One credit record reaches the client.
    Arrive,
}

fn upload_events() -> impl Strategy<Value = UploadEvent> {
    prop_oneof![
        4 => (5..=MAX_STREAM_RECORD_LEN).prop_map(UploadEvent::Send),
        1 => Just(UploadEvent::Send(MAX_STREAM_RECORD_LEN)),
        4 => any::<bool>().prop_map(|accept| UploadEvent::Read { accept }),
        2 => Just(UploadEvent::LetGo),
        2 => any::<bool>().prop_map(|flush| UploadEvent::GiveBack { flush }),
        3 => Just(UploadEvent::Arrive),
    ]
}

/// Both ends of one public connection and what is on its way between them.
struct Upload {
    client: UploadSender,
    router: UploadReceiver,
    window: u32,
    records: VecDeque<usize>,
    held: Vec<usize>,
    credits: VecDeque<[u8; 8]>,
}

impl Upload {
    fn new(window: u32) -> Self {
        Self {
            client: UploadSender::new(window).unwrap(),
            router: UploadReceiver::new(window).unwrap(),
            window,
            records: VecDeque::new(),
            held: Vec::new(),
            credits: VecDeque::new(),
        }
    }

    fn step(&mut self, event: UploadEvent) {
        match event {
            UploadEvent::Send(len) => {
                let covered = self.client.outstanding() as usize + len <= self.window as usize;
                assert_eq!(self.client.can_send(len), covered);
                let before = self.client.outstanding();
                match self.client.spend(len) {
                    Ok(()) => self.records.push_back(len),
                    Err(fault) => {
                        assert_eq!(fault, CreditFault::Overdraw);
                        assert_eq!(self.client.outstanding(), before);
                    }
                }
                assert_eq!(
                    covered,
                    self.client.outstanding() != before,
                    "spends exactly what is covered"
                );
            }
            UploadEvent::Read { accept } => {
                if let Some(len) = self.records.pop_front() {
                    self.router.receive(len).expect("an honest client");
                    if accept {
                        self.router.accept(len);
                    } else {
                        self.held.push(len);
                    }
                }
            }
            UploadEvent::LetGo => {
                if let Some(len) = self.held.pop() {
                    self.router.accept(len);
                }
            }
            UploadEvent::GiveBack { flush } => {
                let owed = self.router.owed();
                match self.router.take_due(flush) {
                    Some(amount) => {
                        assert_eq!(amount, owed);
                        assert!(flush || amount >= self.window / 4);
                        self.credits.push_back(encode_upload_credit(amount));
                    }
                    None => assert!(owed == 0 || (!flush && owed < self.window / 4)),
                }
            }
            UploadEvent::Arrive => {
                if let Some(record) = self.credits.pop_front() {
                    let amount = decode_upload_credit(&record).unwrap();
                    self.client.credit(amount).unwrap();
                }
            }
        }
        self.check();
    }

    /// Every byte of the client's outstanding credit is somewhere, once.
    fn check(&self) {
        let on_the_way: usize = self.records.iter().sum();
        let coming_back: u32 = self
            .credits
            .iter()
            .map(|record| decode_upload_credit(record).unwrap())
            .sum();
        assert!(self.client.outstanding() <= self.window);
        assert_eq!(
            self.client.outstanding() as usize,
            on_the_way + self.router.outstanding() as usize + coming_back as usize
        );
    }

    /// Nothing more is sent and nothing stalls any more.
    fn settle(&mut self) {
        while !self.records.is_empty() {
            self.step(UploadEvent::Read { accept: true });
        }
        while !self.held.is_empty() {
            self.step(UploadEvent::LetGo);
        }
        self.step(UploadEvent::GiveBack { flush: true });
        while !self.credits.is_empty() {
            self.step(UploadEvent::Arrive);
        }
    }
}

/// What happens next between router and toolshed.
#[derive(Clone, Copy, Debug)]
enum RequestEvent {
    /// The router sends a request of this many body bytes, if its credit covers it.
    Send(u32),
    /// One header reaches the toolshed.
    Header,
    /// The turn of a request ends: answered, refused, or its session is gone.
    End(prop::sample::Index),
    /// The toolshed takes what it owes, to be written at the next record boundary.
    Take,
    /// It writes one credit record.
    Write,
    /// One credit record reaches the router.
    Arrive,
}

fn request_events() -> impl Strategy<Value = RequestEvent> {
    prop_oneof![
        4 => (1..=REQUEST_WINDOW).prop_map(RequestEvent::Send),
        4 => (1..=REQUEST_WINDOW / 16).prop_map(RequestEvent::Send),
        1 => Just(RequestEvent::Send(REQUEST_WINDOW)),
        6 => Just(RequestEvent::Header),
        4 => any::<prop::sample::Index>().prop_map(RequestEvent::End),
        3 => Just(RequestEvent::Take),
        3 => Just(RequestEvent::Write),
        4 => Just(RequestEvent::Arrive),
    ]
}

/// Both ends of one data socket and what is on its way between them.
struct Request {
    router: RequestSender,
    toolshed: RequestReceiver,
    headers: VecDeque<(u64, u32)>,
    turns: Vec<u32>,
    to_write: VecDeque<u32>,
    credits: VecDeque<[u8; 8]>,
    sent: u64,
}

impl Request {
    fn new() -> Self {
        let mut toolshed = RequestReceiver::new();
        let grant = toolshed.initial_grant();
        assert_eq!(grant, REQUEST_WINDOW);
        Self {
            router: RequestSender::new(),
            toolshed,
            headers: VecDeque::new(),
            turns: Vec::new(),
            to_write: VecDeque::from([grant]),
            credits: VecDeque::new(),
            sent: 0,
        }
    }

    fn step(&mut self, event: RequestEvent) {
        match event {
            RequestEvent::Send(bytes) => {
                let held = self.router.held();
                match self.router.try_reserve(bytes) {
                    Some(ordinal) => {
                        assert!(bytes <= held);
                        self.sent += 1;
                        assert_eq!(ordinal, self.sent);
                        self.headers.push_back((ordinal, bytes));
                    }
                    None => assert!(bytes > held && self.router.held() == held),
                }
            }
            RequestEvent::Header => {
                if let Some((ordinal, bytes)) = self.headers.pop_front() {
                    self.toolshed
                        .header(ordinal, bytes)
                        .expect("an honest router");
                    self.turns.push(bytes);
                }
            }
            RequestEvent::End(index) => {
                if !self.turns.is_empty() {
                    let bytes = self.turns.swap_remove(index.index(self.turns.len()));
                    self.toolshed.finish(bytes);
                }
            }
            RequestEvent::Take => self.to_write.extend(self.toolshed.take_owed()),
            RequestEvent::Write => {
                if let Some(amount) = self.to_write.pop_front() {
                    self.credits.push_back(encode_request_credit(amount));
                    self.toolshed.written(amount);
                }
            }
            RequestEvent::Arrive => {
                if let Some(record) = self.credits.pop_front() {
                    let amount = decode_request_credit(&record).unwrap();
                    self.router.grant(amount).expect("an honest toolshed");
                }
            }
        }
        self.check();
    }

    /// The window is somewhere, once, in the eyes of both ends.
    fn check(&self) {
        let on_the_way: u32 = self.headers.iter().map(|(_, bytes)| bytes).sum();
        let coming_back: u32 = self
            .credits
            .iter()
            .map(|record| decode_request_credit(record).unwrap())
            .sum();
        let unwritten: u32 = self.to_write.iter().sum();
        let in_use: u32 = self.turns.iter().sum();
        assert_eq!(self.toolshed.in_use(), in_use);
        assert_eq!(
            self.toolshed.available(),
            self.router.held() + on_the_way + coming_back
        );
        assert_eq!(
            self.toolshed.available() + in_use + self.toolshed.owed() + unwritten,
            REQUEST_WINDOW
        );
    }

    /// Nothing more is sent and every turn ends.
    fn settle(&mut self) {
        while !self.headers.is_empty() {
            self.step(RequestEvent::Header);
        }
        for bytes in std::mem::take(&mut self.turns) {
            self.toolshed.finish(bytes);
        }
        self.step(RequestEvent::Take);
        while !self.to_write.is_empty() {
            self.step(RequestEvent::Write);
        }
        while !self.credits.is_empty() {
            self.step(RequestEvent::Arrive);
        }
    }
}

proptest! {
    #[test]
    fn all_upload_credit_comes_back(
        window in MIN_UPLOAD_WINDOW..=MAX_UPLOAD_WINDOW,
        events in proptest::collection::vec(upload_events(), 0..200),
    ) {
        let mut upload = Upload::new(window);
        for event in events {
            upload.step(event);
        }
        upload.settle();
        prop_assert_eq!(upload.client.outstanding(), 0);
        prop_assert_eq!(upload.router.outstanding(), 0);
        prop_assert_eq!(upload.client.available(), window);
    }

    #[test]
    fn all_request_credit_comes_back(events in proptest::collection::vec(request_events(), 0..200)) {
        let mut request = Request::new();
        for event in events {
            request.step(event);
        }
        request.settle();
        prop_assert!(request.toolshed.is_idle());
        prop_assert_eq!(request.router.held(), REQUEST_WINDOW);
        prop_assert_eq!(request.toolshed.available(), REQUEST_WINDOW);
    }

    /// The client sends one byte more than its credit, at any moment; with every earlier record read, the router sees it.
    #[test]
    fn any_upload_overdraft_is_caught(
        window in MIN_UPLOAD_WINDOW..=MAX_UPLOAD_WINDOW,
        events in proptest::collection::vec(upload_events(), 0..100),
        extra in 1..1000u32,
    ) {
        let mut upload = Upload::new(window);
        for event in events {
            upload.step(event);
        }
        while !upload.credits.is_empty() {
            upload.step(UploadEvent::Arrive);
        }
        let overdraft = (upload.client.available() + extra) as usize;
        prop_assert_eq!(upload.client.spend(overdraft), Err(CreditFault::Overdraw));
        // Held back, so that no credit goes out that could cover it.
        while !upload.records.is_empty() {
            upload.step(UploadEvent::Read { accept: false });
        }
        prop_assert_eq!(upload.router.receive(overdraft), Err(CreditFault::Overdraw));
    }

    /// Credit that nobody earned is refused by the client, at any moment.
    #[test]
    fn any_unearned_upload_credit_is_caught(
        events in proptest::collection::vec(upload_events(), 0..100),
        extra in 1..1000u32,
    ) {
        let mut upload = Upload::new(MAX_UPLOAD_WINDOW);
        for event in events {
            upload.step(event);
        }
        let outstanding = upload.client.outstanding();
        prop_assert_eq!(upload.client.credit(outstanding + extra), Err(CreditFault::Excess));
        prop_assert_eq!(upload.client.outstanding(), outstanding);
    }

    /// The router sends one byte more than its credit, at any moment.
    #[test]
    fn any_request_overdraft_is_caught(
        events in proptest::collection::vec(request_events(), 0..100),
        extra in 1..1000u32,
    ) {
        let mut request = Request::new();
        for event in events {
            request.step(event);
        }
        while !request.credits.is_empty() {
            request.step(RequestEvent::Arrive);
        }
        while !request.headers.is_empty() {
            request.step(RequestEvent::Header);
        }
        let overdraft = request.router.held() + extra;
        prop_assert_eq!(request.router.try_reserve(overdraft), None);
        let ordinal = request.sent + 1;
        prop_assert_eq!(request.toolshed.header(ordinal, overdraft), Err(CreditFault::Overdraw));
        for wrong in [0, request.sent, ordinal + 1] {
            prop_assert_eq!(request.toolshed.header(wrong, 1), Err(CreditFault::Ordinal));
        }
    }

    /// A grant past the window is refused by the router, at any moment.
    #[test]
    fn any_excess_grant_is_caught(
        events in proptest::collection::vec(request_events(), 0..100),
        extra in 1..1000u32,
    ) {
        let mut request = Request::new();
        for event in events {
            request.step(event);
        }
        let room = REQUEST_WINDOW - request.router.held();
        prop_assert_eq!(request.router.grant(room + extra), Err(CreditFault::Excess));
    }
}

//! The table of options: each row is all that is known of one.
//!
//! Fields, defaults, ranges, names, setters, the C struct, the help of the command line and
//! `docs/OPTIONS.md` follow from it. The build script of the C interface includes this file too, so
//! there is nothing in it but the rows.

/// Hands the rows to the macro `then`: first those of streams, then those of jobs. A row is
///
/// ```text
/// /// What it is. The first sentence is also the help line.
/// agreed name: type as c_type = (default) in (values) "unit";
/// ```
///
/// `agreed` where all ranks need the same value, `local` where each may have its own. A default is
/// a number with or without a unit, `yes`, or `else` and a text where it is the type's own. Values are
/// `(low to high)`, `(0 or low to high)`, or `(of "text")` where the type knows them.
#[doc(hidden)]
#[macro_export]
macro_rules! options_table {
    ($then:ident) => {
        $then! {
            stream {
                /// Batches of the origin stage that may be unconsumed per local queue.
                /// They count as this times `origin_buftarget_bytes`; of a long record that lies in
                /// shared memory 40 bytes do, which say where. Where the queue is a link
                /// (`fabric-only`), no more than 1,024 count, all ranks need the same, and each
                /// takes a buffer as long as those of other nodes.
                local origin_maxrpc: u32 as u64 = (16) in (1 to 65_535) "batches";
                /// Bytes after which an origin lane is shown to its consumer.
                /// A batch of an origin link (`fabric-only`) is sealed at them, and all ranks need
                /// the same there. 1 means at every run.
                local origin_buftarget_bytes: usize as u64 = (4_096) in (1 to 1 MiB) "bytes";
                /// As `origin_maxrpc`, for relay queues.
                local relay_maxrpc: u32 as u64 = (16) in (1 to 65_535) "batches";
                /// As `origin_buftarget_bytes`, for relay queues.
                local relay_buftarget_bytes: usize as u64 = (4_096) in (1 to 1 MiB) "bytes";
                /// Batches per link to another node that may be in flight, unacknowledged.
                agreed remote_maxrpc: u32 as u64 = (4) in (1 to 1_024) "batches";
                /// Bytes at which a batch between nodes is sealed.
                /// Fewer where links are so many that an eighth of `memory_bytes` does not hold two
                /// such batches for each: with the defaults above 32 links.
                agreed remote_buftarget_bytes: usize as u64 = (64 KiB) in (1 to 16 MiB) "bytes";
                /// Records that may wait for a delivery thread, or for an application without a
                /// handler. One run always may.
                local deliverq_max: usize as u64 = (65_536) in (1 to 4_294_967_295) "records";
                /// Whether the handler has a delivery thread of its own, where the job has threads.
                /// Those of the other streams share one, on which a handler that blocks keeps the
                /// others waiting.
                local own_thread: bool as u64 = (else "0") in (of "0, 1") "";
                /// Place of the stream among others: a higher one is served first in each round of
                /// progress.
                local priority: u8 as u64 = (0) in (0 to 255) "";
                /// Time that a partial run or batch waits while its rank makes progress.
                /// A run that grows all the while has ten times as much, since it is full soon.
                local linger_us: u64 as u64 = (100) in (0 to 10_000_000) "microseconds";
                /// Size of a run, header included.
                /// At most a quarter of a lane counts.
                local run_bytes: usize as u64 = (8_192) in (24 to 16_384) "bytes";
                /// Memory of the stream's queues on a rank, in fixed shares.
                /// Lanes, batches, receive slots, open runs and deliveries that wait are shares of
                /// it. What each link must have, two batches and a small slot, comes on top where
                /// links are many, and so do long records, the spill, and what arrays keep of
                /// broadcasts, at most as much again. Channels have a quarter of it, 64 MiB at
                /// most, for messages inside of a node, where streams have an eighth.
                agreed memory_bytes: usize as u64 = (32 MiB) in (64 KiB to 64 GiB) "bytes";
                /// Bound of what handlers' sends may spill: what finds no room in a queue. 0 is a
                /// quarter of the memory that the processes of a node may use, divided by its
                /// ranks. Taken as it is needed, and given back. Beyond it a handler's send fails,
                /// and the job ends with that error.
                local spill_bytes: usize as u64 = (0) in (0 or 1_024 to 1 TiB) "bytes";
                /// Longest record.
                /// A rank puts together long records of twice this at a time.
                agreed max_message_bytes: usize as u64 = (64 MiB) in (0 to 4_294_967_295) "bytes";
                /// How messages travel.
                /// `three-hop` goes over representatives of both nodes, with as many links between
                /// two nodes (rails) as give every rank its share of the work: the target of a
                /// message picks one. `three-hop:1` has one, between the ranks that nexus would
                /// choose, and `three-hop:4` four, or as many as the smaller node has ranks.
                /// Where nodes have several relays (agents, or processes with mini-ranks),
                /// `three-hop:4+1`, or `three-hop:+1`, goes over those that follow on their nodes.
                /// `direct` has a link to each rank of other nodes; `fabric-only` goes the ways of
                /// `three-hop`, with two links to each rank of the node in the place of lanes;
                /// `mesh` corrects one coordinate of a grid per hop, the last one first. Lengths
                /// are given (`mesh:4x4x8`; ranks may be fewer than places), or suit the nodes
                /// (`mesh:3d`, and two dimensions where nothing is said); there are 20 dimensions
                /// at most. `node-mesh` (`node-mesh:4x8`, `node-mesh:3d`) does so on a grid of
                /// nodes, with three hops for each coordinate at most and the links divided among
                /// the ranks of a node. `team-mesh` (`team-mesh:4x8`, `team-mesh:3d`) too, with a
                /// team of a node's ranks for each dimension: two hops at most beside one for each
                /// coordinate, and more links. For mini-ranks grids are of processes, for ranks
                /// with agents of nodes, and `fabric-only` is refused. A Rust program may bring
                /// its own. Where an eighth of `memory_bytes` does not hold two batches for each
                /// link, all others than `three-hop` alone are refused.
                agreed route: RouteName as [c_char; 64] = (else "three-hop") in (of "three-hop, direct, fabric-only, mesh, node-mesh, team-mesh, three-hop:K, three-hop:K+N, mesh:AxB..., mesh:Nd") "";
            }
            job {
                /// Who started the job.
                /// `single` also where a launcher has several tasks and each is to be a job of one.
                local launcher: Option<Launcher> as [c_char; 16] = (else "found out") in (of "master, pmix, pmi1, local, single, agent") "";
                /// libfabric provider between nodes.
                /// `FI_PROVIDER` counts where this is not set and that names just one.
                local provider: Option<String> as [c_char; 64] = (else "the best by score") in (of "a name as `trihop info` has it") "";
                /// Network interfaces, domains or addresses, with commas between them.
                /// Each rank takes the closest one (see `trihop info`). Those of a list have to
                /// reach each other. Not together with `loopback`.
                local interface: Option<String> as [c_char; 64] = (else "the provider's first that other nodes can reach, and those of its network") in (of "interfaces, domains or addresses") "";
                /// Longest batch that is sent without asking.
                /// 0 is the provider's own limit.
                agreed eager_bytes: Option<usize> as u64 = (else "the provider's") in (0 or 192 to 16 MiB) "bytes";
                /// How longer batches move.
                local mover: Option<Mover> as [c_char; 16] = (else "what suits the provider") in (of "read, segments") "";
                /// Whether nodes are simulated on one machine, so that only loopback is used.
                /// `trihop run` sets it, unless `interface` is given.
                local loopback: bool as u64 = (else "0") in (of "0, 1") "";
                /// How long start-up waits for the other ranks.
                local bootstrap_timeout_ms: u64 as u64 = (30_000) in (1 to 86_400_000) "milliseconds";
                /// How long another node may be out of reach before its ranks count as dead.
                /// Its link is cut then, or its machine down. The kernels ask each other, in steps
                /// of whole seconds: how long a rank computes, blocks or is stopped does not
                /// matter. A process that ends is known at once.
                local watch_timeout_ms: u64 as u64 = (5_000) in (100 to 86_400_000) "milliseconds";
                /// Whether the processes show their counters to others of the same user.
                /// On a page of shared memory, which `trihop top` and `trihop dump` read.
                local counters_page: bool as u64 = (yes) in (of "0, 1") "";
                /// Whether each mini-rank, and the communication thread of its process, keeps to a
                /// core of its own.
                /// They are cores that the thread which starts the mini-ranks may use, in order:
                /// the first is mini-rank 0's, and the one behind those of the mini-ranks is the
                /// communication thread's. Threads that one of them starts later stay on its core.
                /// `own`: no other process uses them, since the launcher has bound each process.
                /// `shared`: the processes of a machine may use the same ones, and each takes its
                /// part, by its place on the machine. Refused where they are too few.
                local minirank_cores: Option<MinirankCores> as [c_char; 16] = (else "none") in (of "own, shared") "";
            }
        }
    };
}

/// A value of the table as an expression.
#[doc(hidden)]
#[macro_export]
macro_rules! option_value {
    (($number:literal)) => {
        $number
    };
    (($number:literal KiB)) => {
        $number << 10
    };
    (($number:literal MiB)) => {
        $number << 20
    };
    (($number:literal GiB)) => {
        $number << 30
    };
    (($number:literal TiB)) => {
        $number << 40
    };
    ((yes)) => {
        true
    };
    ((else $text:literal)) => {
        Default::default()
    };
}

/// What a row says beside its sentences, as one: default, values, unit, whom it binds.
#[doc(hidden)]
#[macro_export]
macro_rules! option_note {
    (agreed $default:tt $values:tt $unit:tt) => {
        concat!($crate::option_note!(local $default $values $unit), " Equal on all ranks.")
    };
    (local $default:tt $values:tt "") => {
        concat!("Default ", $crate::option_text!($default), "; ", $crate::option_text!($values), ".")
    };
    (local $default:tt $values:tt $unit:tt) => {
        concat!(
            "Default ",
            $crate::option_text!($default),
            "; ",
            $crate::option_text!($values),
            "; in ",
            $unit,
            "."
        )
    };
}

/// A default or the values of the table as text.
#[doc(hidden)]
#[macro_export]
macro_rules! option_text {
    ((yes)) => { "1" };
    ((else $text:literal)) => { $text };
    ((of $text:literal)) => { $text };
    ((0 or $($range:tt)+)) => { concat!("0 or ", $crate::option_text!(($($range)+))) };
    (($low:literal $unit:ident to $high:literal $high_unit:ident)) => {
        concat!(stringify!($low), " ", stringify!($unit), " to ", stringify!($high), " ", stringify!($high_unit))
    };
    (($low:literal to $high:literal $unit:ident)) => {
        concat!(stringify!($low), " to ", stringify!($high), " ", stringify!($unit))
    };
    (($low:literal to $high:literal)) => { concat!(stringify!($low), " to ", stringify!($high)) };
    (($number:literal $unit:ident)) => { concat!(stringify!($number), " ", stringify!($unit)) };
    (($number:literal)) => { stringify!($number) };
}

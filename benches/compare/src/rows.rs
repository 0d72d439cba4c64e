//! What a program printed, as figures: rows of JSON (ours, our MPI programs, our threads) and the
//! CSV of `ucx_perftest`.

use std::collections::BTreeMap;

use serde::Deserialize;

/// What a figure says.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Measure {
    /// Half a round trip in microseconds.
    LatencyUs,
    /// Messages of all ranks per second.
    Rate,
    /// Payload bytes of all ranks per second.
    Bandwidth,
    /// User and system time of all ranks per message in microseconds.
    CpuUs,
    /// Bytes handed to the fabric per message that crosses it.
    WireBytes,
    /// A bulk-synchronous step in microseconds.
    RoundUs,
}

impl Measure {
    /// Name in reports.
    pub fn text(self) -> &'static str {
        match self {
            Self::LatencyUs => "one-way latency",
            Self::Rate => "rate",
            Self::Bandwidth => "bandwidth",
            Self::CpuUs => "CPU per message",
            Self::WireBytes => "wire per message",
            Self::RoundUs => "time of a round",
        }
    }

    /// A value with its unit.
    pub fn show(self, value: f64) -> String {
        match self {
            Self::LatencyUs | Self::RoundUs if value < 10.0 => format!("{value:.3} us"),
            Self::LatencyUs | Self::RoundUs => format!("{value:.1} us"),
            Self::Rate if value < 1e5 => format!("{:.2} k/s", value / 1e3),
            Self::Rate if value < 1e7 => format!("{:.3} M/s", value / 1e6),
            Self::Rate => format!("{:.1} M/s", value / 1e6),
            Self::Bandwidth if value < 1e7 => format!("{:.2} MB/s", value / 1e6),
            Self::Bandwidth if value < 1e9 => format!("{:.0} MB/s", value / 1e6),
            Self::Bandwidth => format!("{:.2} GB/s", value / 1e9),
            Self::CpuUs => format!("{value:.4} us"),
            Self::WireBytes => format!("{value:.2} B"),
        }
    }
}

/// Figures of one system in one work.
pub type Figures = BTreeMap<Measure, f64>;

/// One line of figures: which part of the work, and what was measured.
#[derive(Debug, Clone, PartialEq)]
pub struct Row {
    /// Message size in bytes.
    pub size: usize,
    /// Messages per rank; 0 where a rival does not say.
    pub count: u64,
    /// What distinguishes several rows of one size: `copy`, `in_place`, `typed`, `bytes`, `c`,
    /// `conveyor`, `round`, `fence`, or nothing.
    pub variant: String,
    /// Groups of ranks that share memory, where the program says so.
    pub memory_groups: Option<u32>,
    /// Figures.
    pub figures: Figures,
    /// Figures of yardsticks that ran inside the same program, by their names.
    pub yardsticks: Vec<(&'static str, Figures)>,
}

/// A row of JSON; keys that a program does not print are absent.
#[derive(Debug, Deserialize)]
struct JsonRow {
    size: usize,
    count: u64,
    msgs_per_s: f64,
    bytes_per_s: f64,
    checked: bool,
    api: Option<String>,
    /// Options of a client.
    options: Option<String>,
    access: Option<String>,
    chosen: Option<bool>,
    memory_groups: Option<u32>,
    latency_us: Option<f64>,
    cacheline_us: Option<f64>,
    fi_pingpong_us: Option<f64>,
    bare_msgs_per_s: Option<f64>,
    cpu_us_per_msg: Option<f64>,
    wire_bytes_per_msg: Option<f64>,
    /// How a round ends.
    end: Option<String>,
    us_per_round: Option<f64>,
}

/// Yardstick that `trihop bench ring` carries with it.
pub const CACHE_LINE: &str = "cache-line ping-pong";

/// Yardstick that `trihop bench p2p` carries with it.
pub const FI_PINGPONG: &str = "fi_pingpong";

/// Yardstick that `trihop bench histo` carries with it.
pub const BARE: &str = "the same loop without messages";

/// Parses one line of JSON. `None` for a row that does not count: a protocol that the engine would
/// not take.
///
/// # Errors
/// When the line is no row, or one whose results were not checked.
pub fn json(line: &str) -> Result<Option<Row>, String> {
    let row: JsonRow = serde_json::from_str(line)
        .map_err(|error| format!("{line:?} is no row of figures: {error}"))?;
    if !row.checked {
        return Err(format!("the results of {line:?} were not checked"));
    }
    if row.chosen == Some(false) {
        return Ok(None);
    }
    let mut yardsticks = Vec::new();
    if let Some(us) = row.cacheline_us {
        yardsticks.push((CACHE_LINE, Figures::from([(Measure::LatencyUs, us)])));
    }
    if let Some(us) = row.fi_pingpong_us {
        let bandwidth = row.size as f64 * 1e6 / us;
        let figures = [(Measure::LatencyUs, us), (Measure::Bandwidth, bandwidth)];
        yardsticks.push((FI_PINGPONG, Figures::from(figures)));
    }
    if let Some(rate) = row.bare_msgs_per_s {
        yardsticks.push((BARE, Figures::from([(Measure::Rate, rate)])));
    }
    let optional = [
        (Measure::LatencyUs, row.latency_us),
        (Measure::CpuUs, row.cpu_us_per_msg),
        (Measure::WireBytes, row.wire_bytes_per_msg),
        (Measure::RoundUs, row.us_per_round),
    ];
    let mut figures: Figures = optional
        .into_iter()
        .filter_map(|(measure, value)| Some((measure, value?)))
        .collect();
    figures.insert(Measure::Rate, row.msgs_per_s);
    figures.insert(Measure::Bandwidth, row.bytes_per_s);
    let variant = row.end.or(row.access).or(row.options).or(row.api);
    Ok(Some(Row {
        size: row.size,
        count: row.count,
        variant: variant.unwrap_or_default(),
        memory_groups: row.memory_groups,
        figures,
        yardsticks,
    }))
}

/// Parses what `ucx_perftest -v -f -b` printed for tests that are named `lat SIZE` and `bw SIZE`:
/// one row per size.
///
/// # Errors
/// When there is no table, or a line of it has no figures.
pub fn ucx(printed: &str) -> Result<Vec<Row>, String> {
    let mut lines = printed.lines();
    let head = lines
        .by_ref()
        .find(|line| line.contains("avg_lat"))
        .ok_or_else(|| format!("no table in what ucx_perftest printed: {printed:?}"))?;
    let column = |name: &str| {
        head.split(',')
            .position(|column| column == name)
            .ok_or_else(|| format!("no column {name} in {head:?}"))
    };
    let (latency, rate) = (column("overall_lat")?, column("overall_mr")?);
    let mut rows: BTreeMap<usize, Row> = BTreeMap::new();
    for line in lines.filter(|line| !line.trim().is_empty()) {
        let cells: Vec<&str> = line.split(',').collect();
        let bad = || format!("{line:?} has no figures as {head:?} announces them");
        let value = |at: usize| {
            cells
                .get(at)
                .and_then(|c| c.trim().parse::<f64>().ok())
                .ok_or_else(bad)
        };
        let (test, size) = cells[0].trim().split_once('_').ok_or_else(bad)?;
        let size: usize = size.parse().map_err(|_| bad())?;
        let row = rows.entry(size).or_insert_with(|| Row {
            size,
            count: 0,
            variant: String::new(),
            memory_groups: None,
            figures: Figures::new(),
            yardsticks: Vec::new(),
        });
        match test {
            "lat" => {
                row.figures.insert(Measure::LatencyUs, value(latency)?);
            }
            "bw" => {
                let rate = value(rate)?;
                row.figures.insert(Measure::Rate, rate);
                row.figures.insert(Measure::Bandwidth, rate * size as f64);
            }
            _ => return Err(bad()),
        }
    }
    Ok(rows.into_values().collect())
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Printed by `trihop bench ring --json`.
    const RING: &str = r#"{"bench":"ring","api":"bytes","ranks":2,"nodes":1,"hops":1,"provider":"-","size":8,"count":4000000,"msgs_per_s":26486061.91849313,"bytes_per_s":211888495.34794503,"cpu_us_per_msg":0.07549986775,"peak_rss_bytes_per_rank":9228288,"wire_bytes_per_msg":0.0,"seconds":0.151022829,"seconds_range":[0.150633492,0.151898095],"checked":true,"access":"copy","pinned":true,"latency_us":0.3264384,"latency_best_us":0.31304655,"cacheline_us":0.18459425000000002,"ratio_to_cacheline":1.7034597346491445,"memcpy_bytes_per_s":3280570819.322562,"ratio_to_memcpy":0.06475585124190043}"#;

    /// Printed by `trihop bench p2p --json`: what the engine would not take, and what it would.
    const P2P_READ: &str = r#"{"bench":"p2p","api":"bytes","ranks":2,"nodes":2,"hops":1,"provider":"net","size":65536,"count":2048,"msgs_per_s":20583.115025512157,"bytes_per_s":1348935026.3119648,"cpu_us_per_msg":97.10148046875,"peak_rss_bytes_per_rank":20099072,"wire_bytes_per_msg":65566.05859375,"seconds":0.099499031,"seconds_range":[0.099385954,0.100463189],"checked":true,"protocol":"read","chosen":false,"pinned":true,"latency_us":62.471713867187496,"latency_best_us":62.348626464843754,"fi_pingpong_us":51.85,"ratio_to_fi_pingpong":1.2143699429695034}"#;
    const P2P_EAGER: &str = r#"{"bench":"p2p","api":"bytes","ranks":2,"nodes":2,"hops":1,"provider":"net","size":65536,"count":2048,"msgs_per_s":23726.862384626827,"bytes_per_s":1554963653.2389038,"cpu_us_per_msg":84.20579052734375,"peak_rss_bytes_per_rank":20099072,"wire_bytes_per_msg":65537.5234375,"seconds":0.086315669,"seconds_range":[0.086083494,0.106612504],"checked":true,"protocol":"eager","chosen":true,"pinned":true,"latency_us":52.7354697265625,"latency_best_us":52.05093603515625,"fi_pingpong_us":51.85,"ratio_to_fi_pingpong":1.017077526066779}"#;

    /// Printed by `pair` of `mpi/` under MPICH.
    const PAIR: &str = r#"{"bench":"pair","engine":"send","ranks":2,"memory_groups":1,"size":4096,"count":65536,"latency_us":0.656959,"msgs_per_s":1831358.2,"bytes_per_s":7501243270.3,"cpu_us_per_msg":1.092145,"peak_rss_bytes_per_rank":19603456,"seconds":0.035785462,"checked":true}"#;

    /// Printed by `ucx_perftest -b FILE -v -f` of UCX 1.13.
    const UCX: &str = "ucxb,iterations,50.0_percentile_lat,avg_lat,overall_lat,avg_bw,overall_bw,avg_mr,overall_mr\n\
        lat_8,1000,0.160,0.161,0.161,47.41,47.41,6213784,6213784\n\
        bw_8,1000,0.040,0.056,0.057,1089.36,1089.36,17848102,17848103\n\
        bw_64,1000,0.040,0.056,0.056,1089.36,1089.36,17848102,17848102\n";

    fn row(line: &str) -> Row {
        json(line).expect("a row").expect("one that counts")
    }

    #[test]
    fn a_row_of_ring_carries_its_yardstick() {
        let row = row(RING);
        assert_eq!(
            (row.size, row.count, row.variant.as_str()),
            (8, 4_000_000, "copy")
        );
        assert!((row.figures[&Measure::Rate] - 26_486_061.918).abs() < 1.0);
        assert_eq!(row.figures[&Measure::LatencyUs], 0.3264384);
        let (name, figures) = &row.yardsticks[0];
        assert_eq!(*name, CACHE_LINE);
        assert!((figures[&Measure::LatencyUs] - 0.18459425).abs() < 1e-9);
    }

    #[test]
    fn of_p2p_only_the_protocol_counts_that_the_engine_takes() {
        assert_eq!(json(P2P_READ), Ok(None));
        let row = row(P2P_EAGER);
        let (name, figures) = &row.yardsticks[0];
        assert_eq!((*name, figures[&Measure::LatencyUs]), (FI_PINGPONG, 51.85));
        assert!((figures[&Measure::Bandwidth] - 65536.0 / 51.85e-6).abs() < 1.0);
    }

    #[test]
    fn a_row_of_histo_carries_the_bare_loop() {
        let line = PAIR.replace("\"checked\"", "\"bare_msgs_per_s\":3e8,\"checked\"");
        let (name, figures) = &row(&line).yardsticks[0];
        assert_eq!((*name, figures[&Measure::Rate]), (BARE, 3e8));
    }

    #[test]
    fn a_row_of_our_mpi_programs() {
        let row = row(PAIR);
        assert_eq!((row.size, row.variant.as_str()), (4096, ""));
        assert_eq!(row.memory_groups, Some(1));
        assert_eq!(row.figures[&Measure::CpuUs], 1.092145);
        assert!(!row.figures.contains_key(&Measure::WireBytes));
    }

    #[test]
    fn what_is_no_checked_row_is_an_error() {
        for line in [
            "",
            "error: no such bench",
            "{}",
            &PAIR.replace("true", "false"),
        ] {
            assert!(json(line).is_err(), "{line}");
        }
    }

    #[test]
    fn ucx_rows_by_size() {
        let rows = ucx(UCX).expect("a table");
        assert_eq!(rows.iter().map(|r| r.size).collect::<Vec<_>>(), [8, 64]);
        assert_eq!(rows[0].figures[&Measure::LatencyUs], 0.161);
        assert_eq!(rows[0].figures[&Measure::Rate], 17_848_103.0);
        assert_eq!(rows[1].figures[&Measure::Bandwidth], 17_848_102.0 * 64.0);
    }

    #[test]
    fn ucx_without_a_table_is_an_error() {
        assert!(ucx("Waiting for connection...\n").is_err());
        assert!(ucx(&UCX.replace("lat_8", "lat")).is_err());
        assert!(ucx(&UCX.replace("0.161,0.161", "0.161,-")).is_err());
        assert!(ucx(&UCX.replace("overall_mr", "mr")).is_err());
    }
}

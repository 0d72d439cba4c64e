//! Seeded sequences of indices: uniform, Zipf, and those of an RMAT graph.

/// A fast, seeded sequence (splitmix64).
pub(crate) struct Random(pub u64);

impl Random {
    pub fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let z = (self.0 ^ (self.0 >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        let z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }

    /// Uniform in [0, 1), with the 53 bits that an `f64` holds.
    pub fn fraction(&mut self) -> f64 {
        (self.next() >> 11) as f64 / (1u64 << 53) as f64
    }
}

/// Numbers 0 to `limit - 1` in which number k comes with a probability proportional to 1 / (k +
/// 1)^exponent.
///
/// By rejection-inversion (W. Hörmann and G. Derflinger, "Rejection-inversion to generate variates
/// from monotone discrete distributions", 1996): no table, about one draw per number.
pub(crate) struct Zipf {
    limit: f64,
    exponent: f64,
    /// Integral of the density up to its upper end, and from where on numbers are drawn.
    area: (f64, f64),
    /// Below this distance a number is right without a look at its column.
    sure: f64,
}

impl Zipf {
    /// `limit` at least 1, `exponent` positive and not 1.
    pub fn new(limit: u64, exponent: f64) -> Self {
        let mut zipf = Self {
            limit: limit as f64,
            exponent,
            area: (0.0, 0.0),
            sure: 0.0,
        };
        zipf.area = (zipf.integral(limit as f64 + 0.5), zipf.integral(1.5) - 1.0);
        zipf.sure = 2.0 - zipf.inverse(zipf.integral(2.5) - zipf.density(2.0));
        zipf
    }

    fn density(&self, x: f64) -> f64 {
        x.powf(-self.exponent)
    }

    fn integral(&self, x: f64) -> f64 {
        x.powf(1.0 - self.exponent) / (1.0 - self.exponent)
    }

    fn inverse(&self, area: f64) -> f64 {
        (area * (1.0 - self.exponent)).powf(1.0 / (1.0 - self.exponent))
    }

    pub fn draw(&self, random: &mut Random) -> u64 {
        loop {
            let area = self.area.0 + random.fraction() * (self.area.1 - self.area.0);
            let x = self.inverse(area);
            let k = x.round().clamp(1.0, self.limit);
            if k - x <= self.sure || area >= self.integral(k + 0.5) - self.density(k) {
                return k as u64 - 1;
            }
        }
    }
}

/// Vertices of the edges of an RMAT graph with the usual quadrants (0.57, 0.19, 0.19, 0.05): both
/// ends of each edge.
pub(crate) struct Rmat {
    limit: u64,
    levels: u32,
    other_end: Option<u64>,
}

impl Rmat {
    /// Vertices 0 to `limit - 1`; a drawn vertex above is drawn again.
    pub fn new(limit: u64) -> Self {
        Self {
            limit,
            levels: limit.next_power_of_two().trailing_zeros(),
            other_end: None,
        }
    }

    pub fn draw(&mut self, random: &mut Random) -> u64 {
        loop {
            let vertex = match self.other_end.take() {
                Some(vertex) => vertex,
                None => {
                    let (from, to) = self.edge(random);
                    self.other_end = Some(to);
                    from
                }
            };
            if vertex < self.limit {
                return vertex;
            }
        }
    }

    fn edge(&self, random: &mut Random) -> (u64, u64) {
        let (mut from, mut to) = (0, 0);
        for _ in 0..self.levels {
            let quadrant = random.fraction();
            (from, to) = (from << 1, to << 1);
            match quadrant {
                q if q < 0.57 => {}
                q if q < 0.76 => to |= 1,
                q if q < 0.95 => from |= 1,
                _ => (from, to) = (from | 1, to | 1),
            }
        }
        (from, to)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const DRAWS: u64 = 200_000;

    /// How often each of the first numbers is drawn.
    fn counts(limit: u64, mut draw: impl FnMut(&mut Random) -> u64) -> Vec<f64> {
        let (mut random, mut counts) = (Random(5), vec![0.0; limit as usize]);
        for _ in 0..DRAWS {
            counts[draw(&mut random) as usize] += 1.0;
        }
        counts
    }

    #[test]
    fn zipf_numbers_come_as_often_as_their_rank_says() {
        for (limit, exponent) in [(1000u64, 0.99), (10, 2.0), (1, 0.5)] {
            let zipf = Zipf::new(limit, exponent);
            let counts = counts(limit, |random| zipf.draw(random));
            let weight = |k: u64| ((k + 1) as f64).powf(-exponent);
            let all: f64 = (0..limit).map(weight).sum();
            for k in 0..limit.min(20) {
                let expected = DRAWS as f64 * weight(k) / all;
                let off = (counts[k as usize] - expected).abs();
                assert!(
                    off <= 6.0 * expected.sqrt(),
                    "number {k} of {limit}: {} for {expected}",
                    counts[k as usize]
                );
            }
        }
    }

    #[test]
    fn rmat_vertices_have_each_bit_set_as_often_as_the_quadrants_say() {
        let mut rmat = Rmat::new(1 << 10);
        let counts = counts(1 << 10, |random| rmat.draw(random));
        for bit in 0..10 {
            let set: f64 = counts
                .iter()
                .enumerate()
                .filter(|(at, _)| at >> bit & 1 == 1)
                .map(|(_, c)| c)
                .sum();
            let share = set / DRAWS as f64;
            assert!((share - 0.24).abs() < 0.01, "bit {bit}: {share}");
        }
    }

    #[test]
    fn rmat_vertices_stay_below_a_limit_that_is_no_power_of_two() {
        let mut rmat = Rmat::new(700);
        let mut random = Random(1);
        assert!((0..10_000).all(|_| rmat.draw(&mut random) < 700));
    }
}

//! One dimension of a grid, as routes along grids use it: with holes at its end, for which others
//! stand in.

/// One dimension.
#[derive(Debug, Clone, Copy)]
pub struct Row {
    size: u32,
    /// Places between two neighbours.
    stride: u32,
    /// Members of the grid.
    members: u32,
}

/// Where a member is along a dimension.
#[derive(Debug, Clone, Copy)]
pub struct Place {
    pub member: u32,
    /// The member of the same line with the coordinate 0.
    pub base: u32,
    pub coordinate: u32,
}

impl Row {
    /// Those of a grid with these lengths, the last dimension first, as ways correct them.
    pub fn all(sizes: &[u32], members: u32) -> Vec<Self> {
        let mut stride = 1;
        let row = |&size: &u32| {
            let row = Self {
                size,
                stride,
                members,
            };
            stride *= size;
            row
        };
        sizes.iter().rev().map(row).collect()
    }

    pub fn size(&self) -> u32 {
        self.size
    }

    /// Places of this dimension and all later ones together.
    pub fn block(&self) -> u32 {
        self.size * self.stride
    }

    /// Where a member is along this dimension.
    pub fn place(&self, member: u32) -> Place {
        let coordinate = member / self.stride % self.size;
        Place {
            member,
            base: member - coordinate * self.stride,
            coordinate,
        }
    }

    /// The first members of all lines.
    pub fn lines(&self) -> impl Iterator<Item = u32> + '_ {
        (0..self.members).filter(|&member| self.place(member).coordinate == 0)
    }

    /// The members of the line that begins with `base`; none where that is missing.
    pub fn line(&self, base: u32) -> impl Iterator<Item = u32> + use<> {
        let end = self.members.min(base.saturating_add(self.block()));
        (base..end)
            .step_by(self.stride as usize)
            .take(self.size as usize)
    }

    /// Who has this coordinate on the ways from a line, or stands in for that place; none where no
    /// way leads.
    pub fn end(&self, base: u32, coordinate: u32) -> Option<u32> {
        let place = base + coordinate * self.stride;
        match place < self.members {
            true => Some(place),
            false => place.checked_sub(self.block()),
        }
    }

    /// Whether ways along this dimension lead from one member to another.
    pub fn leads(&self, from: &Place, to: &Place) -> bool {
        let end = self.end(from.base, to.coordinate);
        from.coordinate != to.coordinate && end == Some(to.member)
    }

    /// Members among which are all that ways along this dimension lead to from one, or from which
    /// they lead to it.
    pub fn around(&self, place: &Place) -> impl Iterator<Item = u32> + use<> {
        let above = place.base.checked_add(self.block());
        let below = place.base.checked_sub(self.block());
        let row = *self;
        let bases = [below, Some(place.base), above].into_iter().flatten();
        bases.flat_map(move |base| row.line(base))
    }

    /// How many ways along this dimension lead to from a member, or come from there.
    pub fn neighbours(&self, place: &Place) -> u32 {
        let base = place.base;
        let own = self.line(base).count() as u32;
        let stood_in = if base >= self.block() {
            self.size - own
        } else {
            0
        };
        // Those of the line above to which this one stands in for its own place there.
        let senders = match place.member.checked_add(self.block()) {
            Some(place) if place >= self.members => self.line(base + self.block()).count() as u32,
            _ => 0,
        };
        own - 1 + stood_in + senders
    }

    /// What is the same of two members that the dimensions before this one tell apart in nothing.
    pub fn before(&self, member: u32) -> u32 {
        member % self.stride
    }

    /// The same, with this dimension.
    pub fn with(&self, member: u32) -> u32 {
        member % self.block()
    }
}

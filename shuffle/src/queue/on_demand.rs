//! Things that are made when they are first used: of many possible ones, few may ever be.

use std::ops::{Index, IndexMut};

/// Up to a fixed number of `T`s, by key; those that exist are numbered in the order in which they were made.
#[derive(Debug)]
pub(crate) struct OnDemand<T> {
    /// By key: 1 + the number, 0 where there is none yet.
    numbers: Vec<u32>,
    made: Vec<T>,
}

impl<T> OnDemand<T> {
    /// None made yet, of `keys`.
    pub fn new(keys: usize) -> Self {
        Self {
            numbers: vec![0; keys],
            made: Vec::new(),
        }
    }

    /// Number of possible ones.
    pub fn keys(&self) -> usize {
        self.numbers.len()
    }

    /// Number of those that were made.
    pub fn len(&self) -> usize {
        self.made.len()
    }

    /// Number of the one with `key`, which `make` makes if need be.
    ///
    /// # Panics
    /// When `key` is not one of the keys.
    #[inline]
    pub fn number<E>(&mut self, key: u32, make: impl FnOnce() -> Result<T, E>) -> Result<usize, E> {
        match self.numbers[key as usize] {
            0 => {
                let made = make()?;
                Ok(self.add(key, made))
            }
            number => Ok(number as usize - 1),
        }
    }

    #[cold]
    fn add(&mut self, key: u32, made: T) -> usize {
        if self.made.len() == self.made.capacity() {
            // Grown by a quarter: of hundreds, half the memory would lie idle otherwise.
            self.made.reserve_exact((self.made.len() / 4).max(4));
        }
        self.made.push(made);
        self.numbers[key as usize] = self.made.len() as u32;
        self.made.len() - 1
    }

    /// All that were made, in that order.
    pub fn iter(&self) -> std::slice::Iter<'_, T> {
        self.made.iter()
    }

    /// As [`OnDemand::iter`], to change them.
    pub fn iter_mut(&mut self) -> std::slice::IterMut<'_, T> {
        self.made.iter_mut()
    }
}

impl<T> Index<usize> for OnDemand<T> {
    type Output = T;
    #[inline]
    fn index(&self, number: usize) -> &T {
        &self.made[number]
    }
}

impl<T> IndexMut<usize> for OnDemand<T> {
    #[inline]
    fn index_mut(&mut self, number: usize) -> &mut T {
        &mut self.made[number]
    }
}

//! Memory of Python's objects as bytes, and bytes as arrays of numpy, both without a copy.
//!
//! The stable ABI of CPython 3.9 has no buffer protocol, but numpy takes whatever has it, and says
//! where an array lies by `__array_interface__`, which is also how it takes memory of ours.

use std::sync::Arc;

use pyo3::exceptions::{PyTypeError, PyValueError};
use pyo3::intern;
use pyo3::prelude::*;
use pyo3::types::{PyBytes, PyDict, PyInt, PyList, PyTuple};
use trihop::channel::Buffer;

use crate::error::Failure;

/// The bytes of an object, in one piece; it is kept alive.
pub struct View<'py> {
    /// An array of numpy, or `bytes`: kept, and not used.
    _owner: Bound<'py, PyAny>,
    address: usize,
    length: usize,
}

impl<'py> View<'py> {
    /// Of `bytes`, an array, or whatever has the buffer protocol. What is not in one piece is
    /// copied.
    pub fn of_bytes(object: &Bound<'py, PyAny>) -> PyResult<Self> {
        if let Ok(bytes) = object.cast::<PyBytes>() {
            let slice = bytes.as_bytes();
            return Ok(Self {
                address: slice.as_ptr() as usize,
                length: slice.len(),
                _owner: object.clone(),
            });
        }
        Self::of_array(&as_array(object)?)
    }

    /// Of an array of numpy.
    pub fn of_array(array: &Bound<'py, PyAny>) -> PyResult<Self> {
        let py = array.py();
        let dtype = array.getattr(intern!(py, "dtype"))?;
        check_no_objects(&dtype, "which do not leave their process")?;
        // Aligned too: so it is the array itself nearly always.
        let array = numpy(py)?.call_method1(
            intern!(py, "require"),
            (array, py.None(), intern!(py, "CA")),
        )?;
        let (address, length) = place_of(&array)?;
        Ok(Self {
            _owner: array,
            address,
            length,
        })
    }

    pub fn bytes(&self) -> &[u8] {
        if self.length == 0 {
            return &[];
        }
        // SAFETY: `bytes` never change, and numpy says that the array has so many there, which it
        // keeps as long as `_owner` is referred to; documents ask programs not to change it while a
        // call uses it.
        unsafe { std::slice::from_raw_parts(self.address as *const u8, self.length) }
    }

    /// As numbers that the array is made of: `T` is one of numpy's integers or floats.
    fn numbers<T: Number>(&self) -> &[T] {
        if self.length == 0 {
            return &[];
        }
        let count = self.length / size_of::<T>();
        // SAFETY: as in `bytes`; any bytes are a number, and `require` has asked for alignment.
        unsafe { std::slice::from_raw_parts(self.address as *const T, count) }
    }
}

/// Memory of an object that may be written, in one piece; it is kept alive.
pub struct Room<'py> {
    /// An array of numpy: kept, and not used.
    _owner: Bound<'py, PyAny>,
    address: usize,
    length: usize,
}

impl<'py> Room<'py> {
    /// Of an array, or of whatever has the buffer protocol. Never a copy: what cannot be written
    /// where it lies is refused.
    pub fn of(object: &Bound<'py, PyAny>) -> PyResult<Self> {
        let py = object.py();
        // What has `__array__` alone may give a copy.
        let array = match object.hasattr(intern!(py, "__array_interface__"))? {
            true => numpy(py)?.call_method1(intern!(py, "asarray"), (object,))?,
            false => array_over(object)?,
        };
        let dtype = array.getattr(intern!(py, "dtype"))?;
        check_no_objects(&dtype, "which bytes cannot be written over")?;
        let flags = array.getattr(intern!(py, "flags"))?;
        let is_writeable: bool = flags.getattr(intern!(py, "writeable"))?.extract()?;
        if !is_writeable {
            let why = "the buffer is read-only: give one that may be written";
            return Err(PyTypeError::new_err(why));
        }
        let is_in_one_piece: bool = flags.getattr(intern!(py, "c_contiguous"))?.extract()?;
        if !is_in_one_piece {
            let why = "the buffer is not in one piece: give a contiguous one";
            return Err(PyValueError::new_err(why));
        }
        let (address, length) = place_of(&array)?;
        Ok(Self {
            _owner: array,
            address,
            length,
        })
    }

    pub fn bytes(&mut self) -> &mut [u8] {
        if self.length == 0 {
            return &mut [];
        }
        // SAFETY: numpy says that the array has so many there, which may be written, and keeps them
        // as long as `_owner` is referred to; documents ask programs to leave them alone while a
        // call uses them.
        unsafe { std::slice::from_raw_parts_mut(self.address as *mut u8, self.length) }
    }
}

/// Refuses a type with Python objects: an array of it has their addresses.
fn check_no_objects(dtype: &Bound<'_, PyAny>, why: &str) -> PyResult<()> {
    match dtype.getattr(intern!(dtype.py(), "hasobject"))?.extract()? {
        true => Err(PyTypeError::new_err(format!(
            "{dtype} has Python objects, {why}"
        ))),
        false => Ok(()),
    }
}

/// Where an array of numpy lies that is in one piece, and how many bytes it has.
fn place_of(array: &Bound<'_, PyAny>) -> PyResult<(usize, usize)> {
    let py = array.py();
    let interface = array.getattr(intern!(py, "__array_interface__"))?;
    let data = interface.get_item(intern!(py, "data"))?;
    let (address, _read_only): (usize, bool) = data.extract()?;
    let length = array.getattr(intern!(py, "nbytes"))?.extract()?;
    Ok((address, length))
}

/// What arrays of numbers are made of.
trait Number: Copy {}

impl Number for u32 {}
impl Number for i64 {}

fn numpy(py: Python<'_>) -> PyResult<Bound<'_, PyModule>> {
    py.import(intern!(py, "numpy"))
}

/// An array over the memory of whatever has the buffer protocol, or is an array by numpy's.
fn as_array<'py>(object: &Bound<'py, PyAny>) -> PyResult<Bound<'py, PyAny>> {
    let py = object.py();
    let is_array = object.hasattr(intern!(py, "__array_interface__"))?
        || object.hasattr(intern!(py, "__array__"))?;
    match is_array {
        true => numpy(py)?.call_method1(intern!(py, "asarray"), (object,)),
        false => array_over(object),
    }
}

/// An array over the memory of whatever has the buffer protocol.
fn array_over<'py>(object: &Bound<'py, PyAny>) -> PyResult<Bound<'py, PyAny>> {
    let py = object.py();
    let builtins = py.import(intern!(py, "builtins"))?;
    let view = builtins.call_method1(intern!(py, "memoryview"), (object,));
    let view = view.map_err(|error| {
        if !error.is_instance_of::<PyTypeError>(py) {
            return error;
        }
        let kind = object.get_type();
        PyTypeError::new_err(format!(
            "{kind} has no bytes of its own: give bytes, an array, or whatever has the buffer \
             protocol, and of a text what `encode` makes of it"
        ))
    })?;
    numpy(py)?.call_method1(intern!(py, "asarray"), (view,))
}

fn is_sequence(object: &Bound<'_, PyAny>) -> bool {
    object.is_instance_of::<PyList>() || object.is_instance_of::<PyTuple>()
}

/// What the items of a stream are: numbers, structures, or rows of these.
pub struct ItemType {
    dtype: Py<PyAny>,
    /// Without the shape of a row.
    base: Py<PyAny>,
    row: Vec<usize>,
    pub bytes: usize,
}

impl ItemType {
    /// Of whatever numpy takes for a type.
    pub fn new(py: Python<'_>, dtype: &Bound<'_, PyAny>) -> PyResult<Self> {
        let dtype = numpy(py)?.call_method1(intern!(py, "dtype"), (dtype,))?;
        check_no_objects(&dtype, "which do not leave their process")?;
        let bytes = dtype.getattr(intern!(py, "itemsize"))?.extract()?;
        if bytes == 0 {
            let why = format!("items of {dtype} have no bytes: give a type of one size");
            return Err(PyTypeError::new_err(why));
        }
        Ok(Self {
            base: dtype.getattr(intern!(py, "base"))?.unbind(),
            row: dtype.getattr(intern!(py, "shape"))?.extract()?,
            dtype: dtype.unbind(),
            bytes,
        })
    }

    /// Numbers of ranks.
    pub fn of_ranks(py: Python<'_>) -> PyResult<Self> {
        Self::new(py, intern!(py, "uint32"))
    }

    /// What items are, which all ranks say in the same words.
    pub fn description(&self, py: Python<'_>) -> PyResult<String> {
        self.dtype.bind(py).str()?.extract()
    }

    pub fn dtype(&self, py: Python<'_>) -> Py<PyAny> {
        self.dtype.clone_ref(py)
    }

    /// The items in `object`: arrays of this type; bytes of whole items; lists and tuples, which
    /// numpy converts.
    pub fn view<'py>(&self, object: &Bound<'py, PyAny>) -> PyResult<View<'py>> {
        let py = object.py();
        let base = self.base.bind(py);
        if object.is_instance_of::<PyBytes>() {
            return self.whole(View::of_bytes(object)?);
        }
        let array = match is_sequence(object) {
            true => self.array_of(object)?,
            false => as_array(object)?,
        };
        let found = array.getattr(intern!(py, "dtype"))?;
        let shape: Vec<usize> = array.getattr(intern!(py, "shape"))?.extract()?;
        let is_of_base = found.eq(base)?;
        if !is_of_base {
            let kind: String = found.getattr(intern!(py, "str"))?.extract()?;
            let are_bytes = kind == "|u1" && shape.len() == 1;
            if !are_bytes {
                let why = format!(
                    "items of {found}, and the stream has items of {}",
                    self.dtype
                );
                return Err(PyTypeError::new_err(why));
            }
            return self.whole(View::of_array(&array)?);
        }
        let (rows, row) = match shape.len().checked_sub(self.row.len()) {
            Some(rest) => shape.split_at(rest),
            None => (&shape[..0], &shape[..]),
        };
        if row != self.row || rows.len() > 1 {
            let why = format!(
                "items in an array of shape {shape:?}: its shape is (count{})",
                self.row
                    .iter()
                    .map(|n| format!(", {n}"))
                    .collect::<String>()
            );
            return Err(PyValueError::new_err(why));
        }
        View::of_array(&array)
    }

    /// A list as an array of items. Numpy cuts off what follows the point where these are integers:
    /// that is refused.
    fn array_of<'py>(&self, list: &Bound<'py, PyAny>) -> PyResult<Bound<'py, PyAny>> {
        let py = list.py();
        let (numpy, base) = (numpy(py)?, self.base.bind(py));
        let kind_of = |dtype: &Bound<'py, PyAny>| -> PyResult<String> {
            dtype.getattr(intern!(py, "kind"))?.extract()
        };
        if matches!(kind_of(base)?.as_str(), "b" | "i" | "u") {
            let found = numpy.call_method1(intern!(py, "array"), (list,))?;
            let dtype = found.getattr(intern!(py, "dtype"))?;
            // Of integers too that no type of integers has together: so they are looked at.
            if matches!(kind_of(&dtype)?.as_str(), "f" | "c" | "O") {
                let objects = (list, intern!(py, "O"));
                let objects = numpy.call_method1(intern!(py, "array"), objects)?;
                for item in objects.call_method0(intern!(py, "ravel"))?.try_iter()? {
                    let item = item?;
                    if !item.hasattr(intern!(py, "__index__"))? {
                        let why = format!(
                            "{} among the items, and the stream has items of {}",
                            item.repr()?,
                            self.dtype
                        );
                        return Err(PyTypeError::new_err(why));
                    }
                }
            }
        }
        numpy.call_method1(intern!(py, "array"), (list, base))
    }

    /// Refuses what are not whole items.
    fn whole<'py>(&self, view: View<'py>) -> PyResult<View<'py>> {
        match view.bytes().len() % self.bytes {
            0 => Ok(view),
            _ => Err(PyValueError::new_err(format!(
                "{} bytes are not whole items of {} bytes",
                view.bytes().len(),
                self.bytes
            ))),
        }
    }

    /// An array of items over memory that it keeps.
    pub fn array<'py>(&self, py: Python<'py>, items: Vec<u8>) -> PyResult<Bound<'py, PyAny>> {
        let count = items.len() / self.bytes;
        let array = Shared::from(Buffer::from(items)).array(py)?;
        let array = array.call_method1(intern!(py, "view"), (&self.base,))?;
        if self.row.is_empty() {
            return Ok(array);
        }
        let shape: Vec<usize> = [count]
            .into_iter()
            .chain(self.row.iter().copied())
            .collect();
        array.call_method1(intern!(py, "reshape"), (shape,))
    }
}

/// To which ranks items go.
#[derive(Clone, Copy)]
pub enum Targets<'a> {
    /// All to one.
    One(u32),
    /// Each to its own.
    Ranks(&'a [u32]),
    /// The same, as programs count: what of them are ranks is found out as they are used.
    Numbers(&'a [i64]),
}

/// The ranks in an object of the program's.
pub struct TargetView<'py> {
    view: Option<View<'py>>,
    one: u32,
    are_ranks: bool,
}

impl<'py> TargetView<'py> {
    /// Of one rank, or an array or list of integers.
    pub fn of(object: &Bound<'py, PyAny>) -> PyResult<Self> {
        if let Ok(one) = object.extract::<u32>() {
            return Ok(Self {
                view: None,
                one,
                are_ranks: true,
            });
        }
        if object.is_instance_of::<PyInt>() {
            let why = format!("target {object} is not a rank of a job");
            return Err(Failure::Misuse(why).into());
        }
        let py = object.py();
        let array = match is_sequence(object) {
            true => numpy(py)?.call_method1(intern!(py, "array"), (object,))?,
            false => as_array(object)?,
        };
        let dtype = array.getattr(intern!(py, "dtype"))?;
        let kind: String = dtype.getattr(intern!(py, "kind"))?.extract()?;
        let dimensions: usize = array.getattr(intern!(py, "ndim"))?.extract()?;
        let size: usize = array.getattr(intern!(py, "size"))?.extract()?;
        if (kind != "i" && kind != "u" && size > 0) || dimensions != 1 {
            let why = format!(
                "targets of {dtype} in {dimensions} dimensions: they are one rank, or an array of \
                 integers in one dimension"
            );
            return Err(PyTypeError::new_err(why));
        }
        let numpy = numpy(py)?;
        let are_ranks = dtype.eq(numpy.getattr(intern!(py, "uint32"))?)?;
        let array = match are_ranks {
            true => array,
            // No copy of what programs have mostly: 64 bits.
            false => {
                let wide = numpy.getattr(intern!(py, "int64"))?;
                let options = PyDict::new(py);
                options.set_item("copy", false)?;
                array.call_method(intern!(py, "astype"), (wide,), Some(&options))?
            }
        };
        Ok(Self {
            view: Some(View::of_array(&array)?),
            one: 0,
            are_ranks,
        })
    }

    /// How many there are; none where one rank gets all.
    pub fn count(&self) -> Option<usize> {
        match self.targets() {
            Targets::One(_) => None,
            Targets::Ranks(ranks) => Some(ranks.len()),
            Targets::Numbers(numbers) => Some(numbers.len()),
        }
    }

    pub fn targets(&self) -> Targets<'_> {
        match &self.view {
            None => Targets::One(self.one),
            Some(view) if self.are_ranks => Targets::Ranks(view.numbers()),
            Some(view) => Targets::Numbers(view.numbers()),
        }
    }
}

/// The bytes of a message, which arrays of numpy lie over.
#[derive(Clone)]
pub struct Shared {
    bytes: Arc<Buffer>,
    address: usize,
}

impl From<Buffer> for Shared {
    fn from(mut bytes: Buffer) -> Self {
        let address = bytes.as_mut_ptr() as usize;
        let bytes = Arc::new(bytes);
        Self { bytes, address }
    }
}

impl Shared {
    pub fn len(&self) -> usize {
        self.bytes.len()
    }

    /// An array of bytes over them.
    pub fn array<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyAny>> {
        let block = Bound::new(py, Block(self.clone()))?;
        numpy(py)?.call_method1(intern!(py, "asarray"), (block,))
    }

    /// The bytes, where no array lies over them.
    ///
    /// # Errors
    /// Themselves.
    pub fn into_buffer(self) -> Result<Buffer, Self> {
        let Self { bytes, address } = self;
        Arc::try_unwrap(bytes).map_err(|bytes| Self { bytes, address })
    }
}

/// Memory that an array of numpy lies over. It refers to this, so the memory stays.
#[pyclass(frozen, module = "trihop")]
pub struct Block(Shared);

#[pymethods]
impl Block {
    #[getter]
    fn __array_interface__<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyDict>> {
        let interface = PyDict::new(py);
        interface.set_item("version", 3)?;
        interface.set_item("typestr", "|u1")?;
        interface.set_item("shape", (self.0.len(),))?;
        interface.set_item("data", (self.0.address, false))?;
        Ok(interface)
    }
}

/// Numbers of a reduction, in the type in which they are reduced.
pub enum Numbers {
    Unsigned(Vec<u64>),
    Signed(Vec<i64>),
    Float(Vec<f64>),
}

/// What the numbers of a reduction were given as.
pub struct Given {
    shape: Vec<usize>,
    is_scalar: bool,
}

impl Numbers {
    /// Of a number, or of an array or a list of them.
    pub fn of(object: &Bound<'_, PyAny>) -> PyResult<(Self, Given)> {
        let py = object.py();
        let numpy = numpy(py)?;
        let array = numpy.call_method1(intern!(py, "asarray"), (object,))?;
        let dtype = array.getattr(intern!(py, "dtype"))?;
        let kind: String = dtype.getattr(intern!(py, "kind"))?.extract()?;
        let shape: Vec<usize> = array.getattr(intern!(py, "shape"))?.extract()?;
        let given = Given {
            is_scalar: shape.is_empty(),
            shape,
        };
        let words = |name: &str| -> PyResult<Vec<[u8; 8]>> {
            let array = array.call_method1(intern!(py, "astype"), (name,))?;
            let view = View::of_array(&array)?;
            Ok(view.bytes().as_chunks().0.to_vec())
        };
        let numbers = match kind.as_str() {
            "u" => Self::Unsigned(each(words("u8")?, u64::from_ne_bytes)),
            "i" | "b" => Self::Signed(each(words("i8")?, i64::from_ne_bytes)),
            "f" => Self::Float(each(words("f8")?, f64::from_ne_bytes)),
            _ => {
                let why =
                    format!("values of {dtype}: integers and floating-point numbers are reduced");
                return Err(PyTypeError::new_err(why));
            }
        };
        Ok((numbers, given))
    }

    /// An array of 64-bit numbers in the shape that was given; a number where one was.
    pub fn into_python<'py>(self, py: Python<'py>, given: Given) -> PyResult<Bound<'py, PyAny>> {
        let (name, bytes) = match self {
            Self::Unsigned(numbers) => ("u8", each(numbers, u64::to_ne_bytes)),
            Self::Signed(numbers) => ("i8", each(numbers, i64::to_ne_bytes)),
            Self::Float(numbers) => ("f8", each(numbers, f64::to_ne_bytes)),
        };
        let array = Shared::from(Buffer::from(bytes.into_flattened())).array(py)?;
        let array = array.call_method1(intern!(py, "view"), (name,))?;
        let array = array.call_method1(intern!(py, "reshape"), (given.shape,))?;
        match given.is_scalar {
            true => array.call_method0(intern!(py, "item")),
            false => Ok(array),
        }
    }
}

fn each<A, B>(all: Vec<A>, one: impl FnMut(A) -> B) -> Vec<B> {
    all.into_iter().map(one).collect()
}

// The Python module ps_server._native. Alone knows Python: checks arrays,
// releases the GIL for every batch, allocates what is returned.
//
// Arrays are checked for dtype, shape, contiguity and alignment; a wrong one is a
// ValueError, as is every std::invalid_argument. What is returned starts at a
// multiple of 64 bytes.

#include <pybind11/numpy.h>
#include <pybind11/pybind11.h>
#include <pybind11/stl.h>

#include <algorithm>
#include <cmath>
#include <cstdlib>
#include <memory>
#include <new>
#include <optional>
#include <stdexcept>
#include <string>
#include <string_view>
#include <vector>

#include "crc32c.h"
#include "dedup.h"
#include "frozen.h"
#include "hash.h"
#include "initializer.h"
#include "key_index.h"
#include "optimizer.h"
#include "reuse_blocks.h"
#include "row.h"
#include "table.h"
#include "xxh64.h"

namespace py = pybind11;

namespace ps_server {
namespace {

constexpr py::ssize_t kAnyLength = -1;
constexpr size_t kMaxDim = 65536;

std::string TextOfShape(const std::vector<py::ssize_t>& shape) {
  std::string text = "[";
  for (size_t i = 0; i < shape.size(); ++i) {
    if (i > 0) text += ", ";
    text += shape[i] == kAnyLength ? "n" : std::to_string(shape[i]);
  }
  return text + "]";
}

template <typename T>
bool HasType(const py::array& array) {
  return py::isinstance<py::array_t<T>>(array);
}

// Throws std::invalid_argument unless `array` is a C-contiguous, aligned array of
// T whose shape is `shape`, kAnyLength standing for any.
template <typename T>
void CheckArray(const char* name, const py::array& array, const std::vector<py::ssize_t>& shape) {
  const std::vector<py::ssize_t> found(array.shape(), array.shape() + array.ndim());
  bool fits = found.size() == shape.size();
  for (size_t i = 0; fits && i < shape.size(); ++i) {
    fits = shape[i] == kAnyLength || shape[i] == found[i];
  }
  const int wanted = py::array::c_style | py::detail::npy_api::NPY_ARRAY_ALIGNED_;
  if (HasType<T>(array) && fits && (array.flags() & wanted) == wanted) return;
  throw std::invalid_argument(
      std::string(name) + " is a C-contiguous, aligned array of " +
      py::cast<std::string>(py::str(py::dtype::of<T>())) + " " + TextOfShape(shape) +
      ", got dtype=" + py::cast<std::string>(py::str(array.dtype())) +
      ", shape=" + TextOfShape(found) +
      ((array.flags() & wanted) == wanted ? "" : ", not contiguous or aligned"));
}

template <typename T>
const T* Input(const char* name, const py::array& array, const std::vector<py::ssize_t>& shape) {
  CheckArray<T>(name, array, shape);
  return static_cast<const T*>(array.data());
}

// Returns an array that starts at a multiple of 64 bytes, not initialised.
template <typename T>
py::array_t<T> NewArray(const std::vector<py::ssize_t>& shape) {
  constexpr size_t kAlignment = 64;
  size_t size = sizeof(T);
  for (py::ssize_t length : shape) size *= static_cast<size_t>(length);
  const size_t rounded = (size / kAlignment + 1) * kAlignment;
  void* const data = std::aligned_alloc(kAlignment, rounded);
  if (data == nullptr) throw std::bad_alloc();
  return py::array_t<T>(shape, static_cast<const T*>(data), py::capsule(data, std::free));
}

py::ssize_t Length(const py::array& array) { return array.ndim() == 0 ? 0 : array.shape(0); }

size_t SizeOf(const py::array& array) { return static_cast<size_t>(Length(array)); }

// A setting of an optimizer or initializer: a number that float32 can hold.
double Setting(const py::dict& settings, const char* name) {
  if (!settings.contains(name)) {
    throw std::invalid_argument(std::string("a setting is missing: ") + name);
  }
  const double value = py::cast<double>(settings[name]);
  if (!std::isfinite(static_cast<float>(value))) {
    throw std::invalid_argument(std::string("a setting is finite in float32, got ") + name + "=" +
                                std::to_string(value));
  }
  return value;
}

std::string KindOf(const py::dict& settings) {
  if (!settings.contains("kind")) throw std::invalid_argument("a setting is missing: kind");
  return py::cast<std::string>(settings["kind"]);
}

Optimizer MakeOptimizer(const py::dict& settings) {
  const std::string kind = KindOf(settings);
  if (kind == "sgd") return Optimizer::Sgd(Setting(settings, "learning_rate"));
  if (kind == "adagrad") {
    return Optimizer::Adagrad(Setting(settings, "learning_rate"), Setting(settings, "epsilon"),
                              Setting(settings, "initial_accumulator"));
  }
  if (kind == "adam") {
    return Optimizer::Adam(Setting(settings, "learning_rate"), Setting(settings, "beta1"),
                           Setting(settings, "beta2"), Setting(settings, "epsilon"));
  }
  throw std::invalid_argument("an optimizer is sgd, adagrad or adam, got kind=" + kind);
}

Initializer MakeInitializer(const py::dict& settings, uint64_t seed) {
  const std::string kind = KindOf(settings);
  if (kind == "constant") return Initializer::Constant(Setting(settings, "value"));
  if (kind == "uniform") {
    return Initializer::Uniform(Setting(settings, "low"), Setting(settings, "high"), seed);
  }
  if (kind == "normal") {
    return Initializer::Normal(Setting(settings, "mean"), Setting(settings, "std"), seed);
  }
  throw std::invalid_argument("an initializer is constant, uniform or normal, got kind=" + kind);
}

std::unique_ptr<Table> MakeTable(size_t dim, const py::dict& optimizer, const py::dict& initializer,
                                 uint64_t seed, size_t num_stripes) {
  if (dim == 0 || dim > kMaxDim) {
    throw std::invalid_argument("dim is from 1 to " + std::to_string(kMaxDim) +
                                ", got dim=" + std::to_string(dim));
  }
  const Optimizer how = MakeOptimizer(optimizer);
  const RowRules rules{RowLayout(dim, how.state_per_weight()), how,
                       MakeInitializer(initializer, seed)};
  return std::make_unique<Table>(rules, num_stripes);
}

py::array Pull(Table& table, const py::array& keys, bool insert,
               const std::optional<py::array>& out) {
  const uint64_t* const from = Input<uint64_t>("keys", keys, {kAnyLength});
  const std::vector<py::ssize_t> shape{Length(keys),
                                       static_cast<py::ssize_t>(table.layout().dim())};
  py::array weights;
  if (out.has_value()) {
    CheckArray<float>("out", *out, shape);
    if (!out->writeable()) throw std::invalid_argument("out is writeable, got a read-only array");
    weights = *out;
  } else {
    weights = NewArray<float>(shape);
  }
  float* const to = static_cast<float*>(weights.mutable_data());
  py::gil_scoped_release released;
  table.Pull(from, static_cast<size_t>(shape[0]), insert, to);
  return weights;
}

void Push(Table& table, const py::array& keys, const py::array& gradients, int64_t step) {
  const uint64_t* const which = Input<uint64_t>("keys", keys, {kAnyLength});
  const float* const from = Input<float>(
      "gradients", gradients, {Length(keys), static_cast<py::ssize_t>(table.layout().dim())});
  const size_t n = SizeOf(keys);
  py::gil_scoped_release released;
  table.Push(which, n, from, step);
}

// Lets copies of gigabytes go without the GIL.
struct DeleteUnlocked {
  void operator()(const Frozen* frozen) const {
    py::gil_scoped_release released;
    delete frozen;
  }
};

using FrozenPointer = std::unique_ptr<Frozen, DeleteUnlocked>;

FrozenPointer Freeze(const Table& table) {
  py::gil_scoped_release released;
  return FrozenPointer(table.Freeze().release());
}

// Of a Table, or of one that is Frozen.
template <typename From>
py::tuple ExportRows(From& table, int64_t first_bucket, int64_t end_bucket) {
  py::array_t<uint64_t> keys, steps;
  py::array_t<uint32_t> num_pushes;
  py::array_t<float> weights, state;
  const auto allocate = [&](size_t num_rows) {
    py::gil_scoped_acquire acquired;
    const py::ssize_t n = static_cast<py::ssize_t>(num_rows);
    keys = NewArray<uint64_t>({n});
    weights = NewArray<float>({n, static_cast<py::ssize_t>(table.layout().dim())});
    state = NewArray<float>({n, static_cast<py::ssize_t>(table.layout().num_state())});
    num_pushes = NewArray<uint32_t>({n});
    steps = NewArray<uint64_t>({n});
    return RowColumns{keys.mutable_data(), weights.mutable_data(), state.mutable_data(),
                      num_pushes.mutable_data(), steps.mutable_data()};
  };
  {
    py::gil_scoped_release released;
    table.Export(first_bucket, end_bucket, allocate);
  }
  return py::make_tuple(keys, weights, state, num_pushes, steps);
}

void ImportRows(Table& table, const py::array& keys, const py::array& weights,
                const py::array& state, const py::array& num_pushes, const py::array& steps) {
  const py::ssize_t n = Length(keys);
  const ConstRowColumns rows{
      Input<uint64_t>("keys", keys, {kAnyLength}),
      Input<float>("weights", weights, {n, static_cast<py::ssize_t>(table.layout().dim())}),
      Input<float>("state", state, {n, static_cast<py::ssize_t>(table.layout().num_state())}),
      Input<uint32_t>("num_pushes", num_pushes, {n}), Input<uint64_t>("steps", steps, {n})};
  py::gil_scoped_release released;
  table.Import(rows, static_cast<size_t>(n));
}

py::tuple DedupKeys(const py::array& keys, const py::array& owners, size_t num_owners) {
  const uint64_t* const from = Input<uint64_t>("keys", keys, {kAnyLength});
  const uint16_t* const owner_of = Input<uint16_t>("owners", owners, {kNumBuckets});
  py::array_t<int64_t> inverse = NewArray<int64_t>({Length(keys)});
  int64_t* const to = inverse.mutable_data();
  const size_t n = SizeOf(keys);
  std::optional<Dedup> dedup;
  {
    py::gil_scoped_release released;
    dedup.emplace(from, n, owner_of, num_owners, to);
  }
  py::array_t<uint64_t> unique =
      NewArray<uint64_t>({static_cast<py::ssize_t>(dedup->num_unique())});
  py::array_t<int64_t> counts =
      NewArray<int64_t>({static_cast<py::ssize_t>(dedup->counts().size())});
  std::copy(dedup->counts().begin(), dedup->counts().end(), counts.mutable_data());
  uint64_t* const unique_data = unique.mutable_data();
  {
    py::gil_scoped_release released;
    dedup->CopyUnique(unique_data);
  }
  return py::make_tuple(unique, inverse, counts);
}

py::array_t<uint16_t> BucketsOf(const py::array& keys) {
  const uint64_t* const from = Input<uint64_t>("keys", keys, {kAnyLength});
  py::array_t<uint16_t> buckets = NewArray<uint16_t>({Length(keys)});
  uint16_t* const to = buckets.mutable_data();
  const size_t n = SizeOf(keys);
  py::gil_scoped_release released;
  for (size_t i = 0; i < n; ++i) to[i] = static_cast<uint16_t>(BucketOfHash(HashOfKey(from[i])));
  return buckets;
}

py::array_t<int64_t> FindKeys(KeyIndex& index, const py::array& keys, bool insert) {
  const uint64_t* const from = Input<uint64_t>("keys", keys, {kAnyLength});
  py::array_t<int64_t> numbers = NewArray<int64_t>({Length(keys)});
  int64_t* const to = numbers.mutable_data();
  const size_t n = SizeOf(keys);
  py::gil_scoped_release released;
  index.Find(from, n, insert, to);
  return numbers;
}

py::array_t<uint64_t> KeysOf(const KeyIndex& index) {
  const std::vector<uint64_t> held = index.keys();
  py::array_t<uint64_t> keys = NewArray<uint64_t>({static_cast<py::ssize_t>(held.size())});
  std::copy(held.begin(), held.end(), keys.mutable_data());
  return keys;
}

template <typename Offset>
py::array_t<uint64_t> HashTextAs(const py::array& offsets, const py::array& data, uint64_t seed) {
  const Offset* const at = Input<Offset>("offsets", offsets, {kAnyLength});
  const uint8_t* const text = Input<uint8_t>("data", data, {kAnyLength});
  if (Length(offsets) == 0) throw std::invalid_argument("offsets has n + 1 entries, got 0");
  const size_t n = SizeOf(offsets) - 1, size = SizeOf(data);
  py::array_t<uint64_t> hashes = NewArray<uint64_t>({static_cast<py::ssize_t>(n)});
  uint64_t* const to = hashes.mutable_data();
  py::gil_scoped_release released;
  HashText(at, n, text, size, seed, to);
  return hashes;
}

py::array_t<uint64_t> HashTextArray(const py::array& offsets, const py::array& data,
                                    uint64_t seed) {
  if (HasType<int32_t>(offsets)) return HashTextAs<int32_t>(offsets, data, seed);
  return HashTextAs<int64_t>(offsets, data, seed);
}

template <typename Integer>
py::array_t<uint64_t> HashIntegersAs(const py::array& values, uint64_t seed) {
  const Integer* const from = Input<Integer>("values", values, {kAnyLength});
  py::array_t<uint64_t> hashes = NewArray<uint64_t>({Length(values)});
  uint64_t* const to = hashes.mutable_data();
  const size_t n = SizeOf(values);
  py::gil_scoped_release released;
  HashIntegers(from, n, seed, to);
  return hashes;
}

py::array_t<uint64_t> HashIntegerArray(const py::array& values, uint64_t seed) {
  if (HasType<uint64_t>(values)) return HashIntegersAs<uint64_t>(values, seed);
  return HashIntegersAs<int64_t>(values, seed);
}

uint64_t HashBytes(const py::bytes& data, uint64_t seed) {
  const std::string_view view = data;
  return Xxh64(view.data(), view.size(), seed);
}

uint32_t Crc32cOf(const py::object& data, uint32_t crc) {
  constexpr py::ssize_t kLarge = 16384;  // 2 us, twenty times what letting the GIL go costs
  Py_buffer view;
  if (PyObject_GetBuffer(data.ptr(), &view, PyBUF_SIMPLE) != 0) throw py::error_already_set();
  const std::unique_ptr<Py_buffer, void (*)(Py_buffer*)> held(&view, &PyBuffer_Release);
  std::optional<py::gil_scoped_release> released;
  if (view.len >= kLarge) released.emplace();
  return Crc32c(view.buf, static_cast<size_t>(view.len), crc);
}

std::string CompilerName() {
#if defined(__clang__)
  return "clang " + std::to_string(__clang_major__) + "." + std::to_string(__clang_minor__) + "." +
         std::to_string(__clang_patchlevel__);
#else
  return "g++ " + std::to_string(__GNUC__) + "." + std::to_string(__GNUC_MINOR__) + "." +
         std::to_string(__GNUC_PATCHLEVEL__);
#endif
}

}  // namespace
}  // namespace ps_server

PYBIND11_MODULE(_native, module) {
  using namespace ps_server;  // NOLINT: a module's body is its own scope
  using py::arg;

  module.doc() =
      "The native work of ps_server: tables, hashes, dedup. See table.py, keys.py and memory.py.";
  module.attr("compiler") = CompilerName();
  module.attr("num_buckets") = kNumBuckets;

  py::class_<Table>(module, "Table", py::module_local())
      .def(py::init(&MakeTable), py::kw_only(), arg("dim"), arg("optimizer"), arg("initializer"),
           arg("seed"), arg("num_stripes") = size_t{1} << kStripeBits)
      .def("pull", &Pull, arg("keys"), arg("insert"), arg("out") = py::none())
      .def("push", &Push, arg("keys"), arg("gradients"), arg("step"))
      .def("freeze", &Freeze, py::keep_alive<0, 1>())
      .def("export_rows", &ExportRows<const Table>, arg("first_bucket"), arg("end_bucket"))
      .def("drop_buckets", &Table::DropBuckets, arg("first_bucket"), arg("end_bucket"),
           py::call_guard<py::gil_scoped_release>())
      .def("import_rows", &ImportRows, arg("keys"), arg("weights"), arg("state"), arg("num_pushes"),
           arg("steps"))
      .def("clear", &Table::Clear, py::call_guard<py::gil_scoped_release>())
      .def("num_rows", &Table::num_rows, py::call_guard<py::gil_scoped_release>())
      .def("memory_bytes", &Table::memory_bytes, py::call_guard<py::gil_scoped_release>())
      .def("last_step", &Table::last_step);

  py::class_<Frozen, FrozenPointer>(module, "Frozen", py::module_local())
      .def("export_rows", &ExportRows<Frozen>, arg("first_bucket"), arg("end_bucket"))
      .def("release_buckets", &Frozen::ReleaseBuckets, arg("end_bucket"),
           py::call_guard<py::gil_scoped_release>())
      .def("num_rows", &Frozen::num_rows)
      .def("memory_bytes", &Frozen::memory_bytes, py::call_guard<py::gil_scoped_release>())
      .def("last_step", &Frozen::last_step);

  py::class_<KeyIndex>(module, "KeyIndex", py::module_local())
      .def(py::init<>())
      .def("find", &FindKeys, arg("keys"), arg("insert"))
      .def("keys", &KeysOf)
      .def("__len__", &KeyIndex::size);

  module.def("dedup", &DedupKeys, arg("keys"), arg("owners"), arg("num_owners"));
  module.def("bucket_of", &BucketsOf, arg("keys"));
  module.def("hash_text", &HashTextArray, arg("offsets"), arg("data"), arg("seed"));
  module.def("hash_integers", &HashIntegerArray, arg("values"), arg("seed"));
  module.def("crc32c", &Crc32cOf, arg("data"), arg("crc"));
  module.def("hash_bytes", &HashBytes, arg("data"), arg("seed"));
  module.def("reuse_blocks", &ReuseBlocks, arg("folder"));
  module.def("bytes_of_reused_blocks", &BytesOfReusedBlocks);
}

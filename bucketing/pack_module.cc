#include "bucketing/pack_module.hpp"

#include <map>

#include "base/log.hpp"
#include "base/mutex.hpp"
#include "bucketing/pack_image.hpp"

namespace noria::bucketing {

namespace {

struct Loaded {
  Mutex mutex;
  std::map<const CudaDevice*, std::weak_ptr<const PackModule>> by_device NORIA_GUARDED_BY(mutex);
};

Loaded& loaded() {
  static Loaded* const the_loaded = new Loaded;  // never destroyed: objects may outlive main()
  return *the_loaded;
}

}  // namespace

Outcome<std::shared_ptr<const PackModule>> PackModule::of(const CudaDevice& device) {
  const MutexLock lock(loaded().mutex);
  auto& known = loaded().by_device[&device];
  if (auto module = known.lock()) return module;
  const std::shared_ptr<PackModule> made(new PackModule(device));
  NORIA_TRY(made->load());
  known = made;
  return std::shared_ptr<const PackModule>(made);
}

Outcome<Ok> PackModule::load() {
  NORIA_TRY_ASSIGN(const CudaDevice::Current current, device_->make_current());
  const auto done = device_->api().call<&CudaSymbols::module_load>(&module_, pack_image().data());
  if (done) return Ok{};
  module_ = nullptr;
  // Memory may be there the next time. Of a device that is lost the next call tells.
  if (done.failure().code == NORIA_E_NOMEM) return done.failure();
  why_none_ = kHasPackImage ? "the kernels do not load: " + done.failure().text
                            : std::string("noria was built without nvcc");
  log(LogLevel::warn, "%s: %s; gradients are copied one by one", device_->name().c_str(),
      why_none_.c_str());
  return Ok{};
}

PackModule::~PackModule() {
  if (module_ == nullptr) return;
  // What goes wrong here went wrong before, and was told then.
  const auto current = device_->make_current();
  static_cast<void>(device_->api().call<&CudaSymbols::module_unload>(module_));
}

Outcome<cuda::Function> PackModule::find(const std::string& kernel) const {
  cuda::Function function = nullptr;
  NORIA_TRY(
      device_->api().call<&CudaSymbols::module_get_function>(&function, module_, kernel.c_str()));
  return function;
}

}  // namespace noria::bucketing

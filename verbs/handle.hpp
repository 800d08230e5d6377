// Handles: verbs objects that close themselves.
//
// A Handle is a unique_ptr of 16 bytes that knows its Api. Declare members in the order they must
// be born (context, pd, channel, cq, mr, qp): they die in reverse, the only legal order. A close
// that fails is logged and counted in the Api, never thrown. The Api must outlive its handles.
//
// Threads: a value; one at a time per handle.
#pragma once

#include <memory>

#include "verbs/api.hpp"

namespace noria::verbs {

template <class T, auto Close>
struct Closer {
  const Api* api = nullptr;

  void operator()(T* object) const {
    const ibv_context* context = nullptr;  // the context itself is named by nobody once closed
    if constexpr (!std::is_same_v<T, ibv_context>) context = object->context;
    api->note_closed(SymbolRow<Close>::name, api->probe<Close>(context, object));
  }
};

template <class T, auto Close>
using Handle = std::unique_ptr<T, Closer<T, Close>>;

using Context = Handle<ibv_context, &Symbols::close_device>;
using Pd = Handle<ibv_pd, &Symbols::dealloc_pd>;
using Channel = Handle<ibv_comp_channel, &Symbols::destroy_comp_channel>;
using Cq = Handle<ibv_cq, &Symbols::destroy_cq>;
using Mr = Handle<ibv_mr, &Symbols::dereg_mr>;
using Qp = Handle<ibv_qp, &Symbols::destroy_qp>;

// Makes an object with `Create` and owns it: create<Qp, &Symbols::create_qp>(api, context, pd,
// &attr).
template <class H, auto Create, class... Args>
Result<H> create(const Api& api, const ibv_context* on, Args... args) {
  NORIA_TRY_ASSIGN(auto* object, (api.call<Create>(on, args...)));
  api.note_opened();
  return H(object, typename H::deleter_type{&api});
}

}  // namespace noria::verbs

noria_fuzz(NAME wire LIBS noria_transport
           PARSERS verbs/transport/control.cc verbs/transport/handshake.cc)
if(TARGET noria_softverbs)
  noria_fuzz(NAME handshake LIBS noria_transport
             PARSERS verbs/transport/acceptor.cc verbs/transport/connector.cc
                     verbs/transport/control.cc verbs/transport/handshake.cc
             ENVIRONMENT "NORIA_IBVERBS=$<TARGET_FILE:noria_softverbs>")
  add_dependencies(fuzz_handshake noria_softverbs)
endif()

noria_test(NAME verbs_test LABELS unit LIBS noria_verbs
           SOURCES unit/verbs_api_test.cc unit/verbs_completion_test.cc unit/gid_test.cc unit/qp_test.cc
                   unit/pcie_test.cc)

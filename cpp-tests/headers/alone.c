/* Nothing before the header, and the header twice. */
#include <safealign.h>
#include <safealign.h>

/* Every type is complete where it should be. */
sa_status use_of_the_header(const sa_file *file, sa_view *view, sa_error *error);
sa_status use_of_the_header(const sa_file *file, sa_view *view, sa_error *error) {
    sa_open_options options;
    SA_INIT(&options);
    return options.strict ? SA_ERR_NONCONFORMING : sa_map_tensor(file, "t", SA_NUL_TERMINATED, view, error);
}

//! Objects of kinds that are known only at run time, read by a type of our own.

/// Implements [`kube::Resource`] for a type whose field `metadata` is an `ObjectMeta`. As for
/// [`kube::api::DynamicObject`], an `ApiResource` tells the kind.
macro_rules! impl_dynamic_resource {
    ($object:ty) => {
        impl ::kube::Resource for $object {
            type DynamicType = ::kube::api::ApiResource;
            type Scope = ::kube::core::DynamicResourceScope;

            fn kind(resource: &Self::DynamicType) -> ::std::borrow::Cow<'_, str> {
                <::kube::api::DynamicObject as ::kube::Resource>::kind(resource)
            }

            fn group(resource: &Self::DynamicType) -> ::std::borrow::Cow<'_, str> {
                <::kube::api::DynamicObject as ::kube::Resource>::group(resource)
            }

            fn version(resource: &Self::DynamicType) -> ::std::borrow::Cow<'_, str> {
                <::kube::api::DynamicObject as ::kube::Resource>::version(resource)
            }

            fn plural(resource: &Self::DynamicType) -> ::std::borrow::Cow<'_, str> {
                <::kube::api::DynamicObject as ::kube::Resource>::plural(resource)
            }

            fn meta(&self) -> &::kube::api::ObjectMeta {
                &self.metadata
            }

            fn meta_mut(&mut self) -> &mut ::kube::api::ObjectMeta {
                &mut self.metadata
            }
        }
    };
}

pub(crate) use impl_dynamic_resource;
